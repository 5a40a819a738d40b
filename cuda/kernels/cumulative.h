// Running results along an axis: a thread walks it from its beginning and stores what the box has of it. A tile is any box of the
// output; it repeats the steps before it, and so depends on no other tile.
#pragma once

#include "elements.h"

namespace aspen::cuda {

struct CumulativeShape {
  int axis, extent;
  bool reverse;  // from the end to the beginning
};

template <class Op, class Input, uint32_t (*kCombine)(uint32_t, uint32_t), CumulativeShape kShape>
struct Cumulative : Op {
  static constexpr int kThreads = 128, kRank = Op::kRank, kAxis = kShape.axis;
  struct Memory {};
  static ASPEN_DEVICE void tile(const typename Op::Addresses& buffers, const int32_t* box, Memory&) {
    // Lines along the axis, as a box that has one element there.
    int32_t lines[2 * kRank];
    for (int i = 0; i < 2 * kRank; ++i) lines[i] = box[i];
    lines[kAxis] = 0, lines[kRank + kAxis] = box[kRank + kAxis] > box[kAxis] ? 1 : 0;
    Block<kThreads> block;
    each_element<kRank>(block, lines, [&](const int* line) {
      int at[kRank];
      for (int d = 0; d < kRank; ++d) at[d] = line[d];
      uint32_t sum = 0;
      for (int step = 0; step < kShape.extent; ++step) {
        at[kAxis] = kShape.reverse ? kShape.extent - 1 - step : step;
        const uint32_t element = Input::lane(buffers, at);
        sum = step == 0 ? element : kCombine(sum, element);
        if (at[kAxis] >= box[kAxis] && at[kAxis] < box[kRank + kAxis]) Op::finish(buffers, at, sum);
      }
    });
  }
};

}  // namespace aspen::cuda
