// Boxes of an output, some of whose axes a kernel walks block by block.
#pragma once

#include "elements.h"

namespace aspen::cuda {

// Some of an array's axes, the last fastest.
struct Axes {
  int count;
  int of[kMostAxes];
};

// Elements of a box along these axes.
template <int kRank, Axes kAxes>
ASPEN_DEVICE int count_along(const int32_t* box) {
  constexpr Axes axes = kAxes;
  int count = 1;
  ASPEN_UNROLL for (int i = 0; i < axes.count; ++i) count *= box[kRank + axes.of[i]] - box[axes.of[i]];
  return count;
}

// Takes the number of an element along these axes apart into its coordinates. Divisions without signs are shorter.
template <int kRank, Axes kAxes>
ASPEN_DEVICE void decode(const int32_t* box, int number, int* at) {
  constexpr Axes axes = kAxes;
  auto rest = static_cast<uint32_t>(number);
  ASPEN_UNROLL for (int i = axes.count - 1; i >= 0; --i) {
    const int axis = axes.of[i];
    const auto extent = static_cast<uint32_t>(box[kRank + axis] - box[axis]);
    at[axis] = box[axis] + static_cast<int>(i == 0 ? rest : rest % extent);
    if (i > 0) rest /= extent;
  }
}

// The first element along these axes, and on to the next one: false behind the last. Loops that walk so divide nothing.
template <int kRank, Axes kAxes>
ASPEN_DEVICE void begin(const int32_t* box, int* at) {
  constexpr Axes axes = kAxes;
  ASPEN_UNROLL for (int i = 0; i < axes.count; ++i) at[axes.of[i]] = box[axes.of[i]];
}
template <int kRank, Axes kAxes>
ASPEN_DEVICE bool advance(const int32_t* box, int* at) {
  constexpr Axes axes = kAxes;
  ASPEN_UNROLL for (int i = axes.count - 1; i >= 0; --i) {
    const int axis = axes.of[i];
    if (++at[axis] < box[kRank + axis]) return true;
    at[axis] = box[axis];
  }
  return false;
}

}  // namespace aspen::cuda
