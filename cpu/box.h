// Walking boxes of strided tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::ASPEN_TARGET {

// The nest of loops over a box that several operands share, innermost first. Loops of one iteration are left out, and a loop
// that continues the one inside it in every operand is joined with it.
template <int kMaxOperands>
struct LoopNest {
  int num_operands;
  int depth = 0;
  int64_t extents[kMaxRank];
  int64_t strides[kMaxRank][kMaxOperands];

  explicit LoopNest(int operands) : num_operands(operands) {}

  // The loop whose iterations become the columns of planes, and the one for their rows (-1: there is none). Columns are
  // best adjacent in the output, which loop 0 has. Rows are best adjacent in an operand that columns are not adjacent in, so
  // that a transposed operand is read by whole cache lines; else they are the next loop, or the one behind it where that has
  // few iterations.
  int row_loop() const {
    for (int loop = 1; loop < depth; ++loop) {
      for (int i = 0; i < num_operands; ++i) {
        if (std::abs(strides[loop][i]) == 1 && std::abs(strides[0][i]) > 1) return loop;
      }
    }
    constexpr int64_t kFew = 4;
    if (depth > 2 && extents[1] <= kFew && extents[2] > extents[1]) return 2;
    return depth > 1 ? 1 : -1;
  }

  // Brings a longer loop along which an operand is adjacent to the inside of one that has fewer iterations than `least`, as in a
  // shuffle of channels. Returns the longest of the others, as the rows; or, where it changes nothing, row_loop().
  int widen(int64_t least) {
    int inner = 0;
    for (int loop = 1; loop < depth && extents[0] < least; ++loop) {
      const bool is_adjacent =
          std::any_of(strides[loop], strides[loop] + num_operands, [](int64_t stride) { return std::abs(stride) == 1; });
      if (is_adjacent && extents[loop] > extents[inner]) inner = loop;
    }
    if (inner == 0) return row_loop();
    std::swap(extents[0], extents[inner]);
    std::swap(strides[0], strides[inner]);
    return static_cast<int>(std::max_element(extents + 1, extents + depth) - extents);
  }

  // Calls plane(const int64_t* offsets), an offset for each operand, for each combination of the loops other than 0 and `rows`.
  template <class PlaneAt>
  void for_each_plane(int rows, PlaneAt plane) const {
    int64_t offsets[kMaxOperands] = {};
    visit(depth - 1, rows, offsets, plane);
  }

  // Adds a loop outside all the others; stride_of(operand) counts elements.
  template <class StrideOf>
  void add_outside(int64_t extent, StrideOf stride_of) {
    if (extent == 1) return;
    if (depth > 0) {
      bool continues = true;
      for (int i = 0; i < num_operands; ++i) continues &= stride_of(i) == strides[depth - 1][i] * extents[depth - 1];
      if (continues) {
        extents[depth - 1] *= extent;
        return;
      }
    }
    extents[depth] = extent;
    for (int i = 0; i < num_operands; ++i) strides[depth][i] = stride_of(i);
    ++depth;
  }

 private:
  template <class PlaneAt>
  void visit(int loop, int rows, const int64_t* offsets, PlaneAt& plane) const {
    if (loop == rows) --loop;
    if (loop <= 0) return plane(offsets);
    int64_t inner[kMaxOperands];
    std::copy_n(offsets, num_operands, inner);
    for (int64_t i = 0; i < extents[loop]; ++i) {
      visit(loop - 1, rows, inner, plane);
      for (int operand = 0; operand < num_operands; ++operand) inner[operand] += strides[loop][operand];
    }
  }
};

// Counts through a box: `next` moves to the following point in row-major order, false after the last.
struct Odometer {
  int rank;
  int64_t at[kMaxRank];
  int64_t lo[kMaxRank];
  int64_t hi[kMaxRank];

  bool empty() const {
    for (int axis = 0; axis < rank; ++axis) {
      if (lo[axis] >= hi[axis]) return true;
    }
    return false;
  }
  void begin() {
    for (int axis = 0; axis < rank; ++axis) at[axis] = lo[axis];
  }
  bool next() {
    for (int axis = rank - 1; axis >= 0; --axis) {
      if (++at[axis] < hi[axis]) return true;
      at[axis] = lo[axis];
    }
    return false;
  }
};

// Copies a box of `extents` between two strided tensors (strides in elements; `from` may have strides of zero).
void copy_box(int64_t element_bytes, int rank, const int64_t* extents, const void* from, const int64_t* from_strides, void* to,
              const int64_t* to_strides) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
