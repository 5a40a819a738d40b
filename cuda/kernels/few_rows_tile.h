// A tile of a product of few rows (few_rows.h): a box of the output, which has all rows of some columns. One matrix after the
// other that the outer axes choose is multiplied, all rows at once, so that columns are read once.
//
// left: [outer ..., rows ..., depth], right: [outer ..., depth, columns], or [outer ..., columns, depth] where kAlongDepth ->
// output: [outer ..., rows ..., columns]. The axes have any order, and left may lack some of the outer ones.
#pragma once

#include "boxes.h"
#include "few_rows.h"
#include "matrices.h"

namespace aspen::cuda {

struct FewRowsShape {
  int num_rows, depth;
  int column_axis;   // the output's axis of columns; -1: there is one column
  Axes rows, outer;  // the output's axes that make up a row's number, and those that choose a matrix
  MatrixShape left, right;
};

template <class Op, class Stored, FewRowsShape kShape>
struct FewRowsTile : Op {
  using Addresses = typename Op::Addresses;
  using Word = typename Stored::Word;
  static constexpr int kRank = Op::kRank, kColumnAxis = kShape.column_axis;
  static constexpr bool kAlongDepth = kShape.right.along_depth;
  using Product = typename Either<kAlongDepth, FewRowsByLines<Stored, kShape.num_rows, kShape.right.vector>,
                                  FewRows<Stored, kShape.num_rows, kShape.right.vector>>::Type;
  using Memory = typename Product::Memory;
  static constexpr int kThreads = Product::kThreads;
  // Columns are read in whole vectors, so that the first may lie before the box.
  static constexpr int kUnit = kAlongDepth ? 1 : kShape.right.vector;

  // box: [2, kRank], the first coordinates and the ends; it has all rows.
  static ASPEN_DEVICE void tile(const Addresses& buffers, [[maybe_unused]] const int32_t* box, Memory& memory) {
    const auto* const left = static_cast<const Word*>(buffers.inputs[kShape.left.input]);
    const auto* const right = static_cast<const Word*>(buffers.inputs[kShape.right.input]);
    const int64_t stride = kAlongDepth ? kShape.right.line : kShape.right.step;
    for (int matrix = 0; matrix < count_along<kRank, kShape.outer>(box); ++matrix) {
      int at[kRank + 1] = {};  // the first element; other axes than those below have one
      decode<kRank, kShape.outer>(box, matrix, at);
      int num_columns = 1;
      if constexpr (kColumnAxis >= 0) {
        at[kColumnAxis] = box[kColumnAxis] / kUnit * kUnit;
        num_columns = box[kRank + kColumnAxis] - at[kColumnAxis];
      }
      const Word* const rows = left + place_of<kShape.left.strides>(at);
      const auto row_at = [&](int row) {
        int own[kRank + 1] = {};
        decode<kRank, kShape.rows>(box, row, own);
        return rows + place_of<kShape.left.strides>(own);
      };
      Product::template multiply<Op::kSlices>(memory, row_at, kShape.left.step, right + place_of<kShape.right.strides>(at),
                                              stride, count_along<kRank, kShape.rows>(box), num_columns, kShape.depth,
                                              [&](int row, [[maybe_unused]] int column, float sum) {
                                                // Taken apart again: kept over the product, these coordinates would cost
                                                // registers.
                                                int own[kRank + 1] = {};
                                                decode<kRank, kShape.outer>(box, matrix, own);
                                                decode<kRank, kShape.rows>(box, row, own);
                                                if constexpr (kColumnAxis >= 0) {
                                                  own[kColumnAxis] = box[kColumnAxis] / kUnit * kUnit + column;
                                                  if (kUnit > 1 && own[kColumnAxis] < box[kColumnAxis]) return;
                                                }
                                                Op::finish(buffers, own, as_bits(sum));
                                              });
    }
  }
};

}  // namespace aspen::cuda
