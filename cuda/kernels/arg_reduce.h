// Where the largest or least element of a row is: a team of threads walks it, and keeps the first place of the best. A tile is
// any box of the output.
#pragma once

#include "row_walk.h"

namespace aspen::cuda {

// Number: what lanes are compared as. Those of bool are zeros or ones, which are ordered as unsigned numbers are.
template <class Op, class Input, class Number, bool kLargest, RowsShape kShape>
struct ArgReduce : Op {
  using Addresses = typename Op::Addresses;
  using Walk = RowWalk<Op::kRank, kShape>;
  using Team = typename Walk::Team;
  static constexpr int kThreads = Walk::kThreads, kAxis = kShape.along.of[0];
  struct Extreme {
    uint32_t lane;
    int32_t place;  // -1: of nothing
  };
  struct Memory {
    typename Team::template Memory<Extreme> team;
  };

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    Block<kThreads> block;
    Walk walk;
    PerThread<Extreme, kThreads> found;
    for (int first = 0; first < Walk::num_rows(box); first += Team::kRows) {
      walk.begin(block, box, first);
      block.each_thread([&](int thread) { found[thread] = {0, -1}; });
      walk.each_element(block, [&](int thread, const int* at, int) {
        found[thread] = better(found[thread], {Input::lane(buffers, at), at[kAxis]});
      });
      Team::reduce(block, memory.team, found, better);
      walk.each_result(block,
                       [&](int thread, const int* out) { Op::finish(buffers, out, static_cast<uint32_t>(found[thread].place)); });
    }
  }

 private:
  static ASPEN_DEVICE Extreme better(const Extreme& x, const Extreme& y) {
    const bool takes_x = y.place < 0 || (x.place >= 0 && is_better(x, y));
    return {takes_x ? x.lane : y.lane, takes_x ? x.place : y.place};
  }
  // A NaN is beyond all numbers. Of equal elements the first is better.
  static ASPEN_DEVICE bool is_better(const Extreme& x, const Extreme& y) {
    const Number a = number(x.lane), b = number(y.lane);
    const bool is_first = x.place < y.place;
    if constexpr (kIsSame<Number, float>) {
      if (a != a || b != b) return (a != a) == (b != b) ? is_first : a != a;
    }
    return a == b ? is_first : kLargest ? a > b : a < b;
  }
  static ASPEN_DEVICE Number number(uint32_t lane) {
    if constexpr (kIsSame<Number, float>) {
      return as_float(lane);
    } else {
      return static_cast<Number>(lane);
    }
  }
};

}  // namespace aspen::cuda
