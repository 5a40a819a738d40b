// What kernels are made of that compute each element by itself: inputs through their views, and the walk over a box.
//
// Python prints a kernel as `using Op0 = Pool<Op0Program, Input<...>, PoolShape{...}>`. Op0Program is generated: its `finish`
// computes the op's element-wise program on what the kernel gives for an element, and stores it. Its `run` does so for kRun
// adjacent elements at once. Everything else is a template.
//
// A shape is a template argument. Functions copy it to a local constant before they read it in a loop: NVRTC folds the fields of
// a local constant, but loads those of the argument from memory.
#pragma once

#include <cstdint>

#include "block.h"
#include "tile.h"

namespace aspen::cuda {

inline constexpr int kMostAxes = 8;  // of any array (MAX_RANK in aspen_jax/ops/family.py)

// How far apart elements of a view are along each axis.
struct Strides {
  int rank;
  int64_t of[kMostAxes];
};

// How far these coordinates lie from the first element of a view.
template <Strides kStrides>
ASPEN_DEVICE int64_t place_of(const int* at) {
  constexpr Strides strides = kStrides;
  int64_t place = 0;
  ASPEN_UNROLL for (int d = 0; d < strides.rank; ++d) place += int64_t{at[d]} * strides.of[d];
  return place;
}

// Input `kNumber` of an op: elements of type Stored (tile.h), read through a view.
template <int kNumber, class Stored_, Strides kStrides>
struct Input {
  using Stored = Stored_;
  using Word = typename Stored::Word;
  static constexpr int kRank = kStrides.rank;

  template <class Addresses>
  static ASPEN_DEVICE uint32_t lane(const Addresses& buffers, const int* at) {
    return Stored::load(buffers.inputs[kNumber], place_of<kStrides>(at));
  }
  template <class Addresses>
  static ASPEN_DEVICE const Word* address(const Addresses& buffers, const int* at) {
    return static_cast<const Word*>(buffers.inputs[kNumber]) + place_of<kStrides>(at);
  }
};

// Lanes of adjacent elements, read at once.
template <class Stored, int kCount>
struct Run {
  Vector<typename Stored::Word, kCount> vector;
  ASPEN_DEVICE uint32_t lane(int i) const { return Stored::load(vector.elements, i); }
};

// The tile function of a kernel that says what a single element is, `Own::lane(buffers, at)`. Where kRun is more than 1 it also
// says what a run of adjacent elements is: `Own::run(buffers, at)` has a `lane(i)` for each.
template <class Op, class Own, int kRun>
struct EachElement : Op {
  static constexpr int kThreads = 256;
  struct Memory {};
  static ASPEN_DEVICE void tile(const typename Op::Addresses& buffers, const int32_t* box, Memory&) {
    Block<kThreads> block;
    const auto one = [&](const int* at) { Op::finish(buffers, at, Own::lane(buffers, at)); };
    if constexpr (kRun > 1) {
      each_run<Op::kRank, kRun>(block, box, [&](const int* at) { Op::run(buffers, at, Own::run(buffers, at)); }, one);
    } else {
      each_element<Op::kRank>(block, box, one);
    }
  }
};

// A kernel that is nothing but its op's program.
struct ElementwiseShape {
  int run;  // adjacent elements at once
};
template <class Op, ElementwiseShape kShape>
struct Elementwise : Op {
  static constexpr int kThreads = 256;
  struct Memory {};
  static ASPEN_DEVICE void tile(const typename Op::Addresses& buffers, const int32_t* box, Memory&) {
    Block<kThreads> block;
    const auto one = [&](const int* at) { Op::finish(buffers, at); };
    if constexpr (kShape.run > 1) {
      each_run<Op::kRank, kShape.run>(block, box, [&](const int* at) { Op::run(buffers, at); }, one);
    } else {
      each_element<Op::kRank>(block, box, one);
    }
  }
};

}  // namespace aspen::cuda
