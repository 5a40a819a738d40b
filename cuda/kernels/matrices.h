// Operands of products, as kernels are told of them. Where a block's elements are, operands.h then says.
#pragma once

#include "boxes.h"
#include "elements.h"
#include "operands.h"
#include "tensor_copy.h"

namespace aspen::cuda {

// Lines are rows of the left operand, or columns of the right one.
struct MatrixShape {
  int input;         // its number
  Strides strides;   // of the output's axes, as far as they choose a matrix or a line of it
  int64_t line;      // from a line to the next
  int64_t step;      // from an element to the next along the depth
  int vector;        // adjacent elements that may be read at once
  bool along_depth;  // whether those lie along the depth, or across it
};

// The matrix whose first line is at coordinates `at` of the output, and that begins `further` elements behind it.
template <MatrixShape kMatrix, class Element, class Addresses>
ASPEN_DEVICE auto matrix_at(const Addresses& buffers, const int* at, int64_t further, int depth) {
  const auto* const all = static_cast<const Element*>(buffers.inputs[kMatrix.input]);
  const Element* const data = all + place_of<kMatrix.strides>(at) + further;
  if constexpr (kMatrix.along_depth) {
    const auto place = [](int line) { return int64_t{line} * kMatrix.line; };
    return placed_rows<Element, kMatrix.vector>(data, place, kMatrix.step, depth);
  } else {
    return MatrixColumns<Element, kMatrix.vector>{data, kMatrix.step, depth};
  }
}

// An operand as a tensor: two axes are the matrix, `outer` of the output's axes are the others, in their order.
struct MatrixMap {
  TensorShape tensor;
  int depth_axis;  // the one of the first two along which products sum
  Axes outer;
};

// Boxes of a matrix from line `line` on; `at` are coordinates of the output.
template <MatrixMap kMap>
ASPEN_DEVICE auto boxes_at(const TensorMap* map, const int* at, int line) {
  constexpr Axes outer = kMap.outer;
  MatrixBoxes<kMap.tensor.rank, kMap.depth_axis> boxes{{map, {}}};
  boxes.first.at[1 - kMap.depth_axis] = line;
  ASPEN_UNROLL for (int i = 0; i < outer.count; ++i) boxes.first.at[2 + i] = at[outer.of[i]];
  return boxes;
}

}  // namespace aspen::cuda
