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
  Strides strides;   // how far each of the output's axes moves the matrix or its first line
  int64_t line;      // elements from a line to the next
  int64_t step;      // elements from one of the depth to the next
  int vector;        // adjacent elements that may be read at once
  bool along_depth;  // whether those lie along the depth, or across it
};

// Gives the matrix whose first line is at coordinates `at` of the output, and `further` elements behind that.
// at: [kMatrix.strides.rank] -> [lines, depth] where vectors lie along the depth, or else [depth, lines].
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
// tensor: [depth, lines, outer ...] where depth_axis is 0, or else [lines, depth, outer ...]; the adjacent elements first.
struct MatrixMap {
  TensorShape tensor;
  int depth_axis;  // the one of the first two along which products sum
  Axes outer;
};

// Gives the boxes of a matrix from line `line` on; `at` are coordinates of the output.
// at: [rank of the output] -> MatrixBoxes, whose chunk(number, across) is a box [kMap.tensor.box[0], kMap.tensor.box[1]].
template <MatrixMap kMap>
ASPEN_DEVICE auto boxes_at(const TensorMap* map, const int* at, int line) {
  constexpr Axes outer = kMap.outer;
  MatrixBoxes<kMap.tensor.rank, kMap.depth_axis> boxes{{map, {}}};
  boxes.first.at[1 - kMap.depth_axis] = line;
  ASPEN_UNROLL for (int i = 0; i < outer.count; ++i) boxes.first.at[2 + i] = at[outer.of[i]];
  return boxes;
}

}  // namespace aspen::cuda
