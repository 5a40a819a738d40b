// A tile of a product: a box of the output. It is cut into blocks of Core::kRows rows by Core::kColumns columns, for each matrix
// that the outer axes choose. One block after the other is multiplied over the whole depth (product.h). Blocks that share rows
// follow each other, so that these come from the cache.
//
// Where a device has warpgroups and tensor maps describe both operands, these are copied in boxes (tensor_copy.h).
#pragma once

#include "matrices.h"
#include "tensor_copy.h"

namespace aspen::cuda {

// An operand as a tensor: two axes are the matrix, `outer` of the output's axes are the others, in their order.
struct MatrixMap {
  TensorShape tensor;
  int depth_axis;  // the one of the first two along which products sum
  Axes outer;
};

struct ProductShape {
  int depth;
  int column_axis;             // of the output; -1: there is one column
  Axes rows, outer;            // of the output: those that make up a row's number, and those that choose a matrix
  int row_extents[kMostAxes];  // of the whole output, along `rows`
  MatrixShape left, right;
  int run;            // adjacent sums that are stored at once
  MatrixMap maps[2];  // of both operands; of rank 0: there are none
};

template <class Op, class Core, ProductShape kShape>
struct ProductTile : Op {
  using Addresses = typename Op::Addresses;
  using Element = typename Core::Element;
  static constexpr bool kMapped = kHasWarpgroups && kShape.maps[0].tensor.rank > 0;
  using Memory = typename Either<kMapped, TensorMemory<Core, Core::kStages>, ProductMemory<Core, Core::kStages>>::Type;
  static constexpr int kThreads = Core::kThreads, kRank = Op::kRank, kColumnAxis = kShape.column_axis;
  // Columns are read in whole vectors, so that the first may lie before the box.
  static constexpr int kUnit = kShape.right.along_depth ? 1 : kShape.right.vector;
  // The rows of a block that is copied in boxes are lines of one tensor: they follow each other there.
  static constexpr bool kByRuns = kMapped && kShape.rows.count > 1;

  static ASPEN_DEVICE constexpr TensorShape tensor(int number) { return kShape.maps[number].tensor; }

  static ASPEN_DEVICE void tile(const Addresses& buffers, [[maybe_unused]] const int32_t* box, Memory& memory) {
    int at[kRank + 1] = {};  // a block's first column in its matrix; other axes than those below have one element
    begin<kRank, kShape.outer>(box, at);
    do {
      // Runs of rows, blocks of a run, and columns.
      for (int run = 0; run < count_along<kRank, kShape.rows>(box); run += rows_of_run(box)) {
        for (int row = 0; row < rows_of_run(box); row += Core::kRows) {
          for (int column = first_column(box); column < last_column(box); column += Core::kColumns) {
            if constexpr (kColumnAxis >= 0) at[kColumnAxis] = column;
            block(buffers, box, at, run + row, min_of(rows_of_run(box) - row, Core::kRows), memory);
          }
        }
      }
    } while (advance<kRank, kShape.outer>(box, at));
  }

 private:
  // num_rows rows from number `first_row` of the box on, by columns from the one at `at` on.
  static ASPEN_DEVICE void block(const Addresses& buffers, const int32_t* box, const int* at, int first_row, int num_rows,
                                 Memory& memory) {
    int num_columns = 1;
    if constexpr (kColumnAxis >= 0) num_columns = min_of(last_column(box) - at[kColumnAxis], Core::kColumns);
    multiply_tile<kShape.run, Op::kSlices>(memory, rows_at(buffers, box, at, first_row), columns_at(buffers, at), num_rows,
                                           num_columns, kShape.depth,
                                           [&](int row, [[maybe_unused]] int column, const float* sums, int count) {
                                             int own[kRank + 1] = {};
                                             ASPEN_UNROLL for (int d = 0; d < kRank; ++d) own[d] = at[d];
                                             decode<kRank, kShape.rows>(box, first_row + row, own);
                                             if constexpr (kColumnAxis >= 0) own[kColumnAxis] += column;
                                             finish_sums<Op, kColumnAxis, kShape.run>(buffers, box, own, sums, count);
                                           });
  }

  static ASPEN_DEVICE int first_column(const int32_t* box) {
    if constexpr (kColumnAxis < 0) {
      return 0;
    } else {
      return box[kColumnAxis] / kUnit * kUnit;
    }
  }
  static ASPEN_DEVICE int last_column(const int32_t* box) {
    if constexpr (kColumnAxis < 0) {
      return 1;
    } else {
      return box[kRank + kColumnAxis];
    }
  }

  // Of a box's rows so many as follow each other in the tensor: an outer axis counts where the box has all that is inside it.
  static ASPEN_DEVICE int rows_of_run(const int32_t* box) {
    if constexpr (kByRuns) {
      constexpr Axes axes = kShape.rows;
      int run = 1;
      bool whole = true;
      ASPEN_UNROLL for (int i = axes.count - 1; i >= 0; --i) {
        const int extent = box[kRank + axes.of[i]] - box[axes.of[i]];
        if (whole) run *= extent;
        whole = whole && extent == kShape.row_extents[i];
      }
      return run;
    } else {
      return count_along<kRank, kShape.rows>(box);
    }
  }

  // Rows from number `first` of the box on, of the matrix at `at`.
  static ASPEN_DEVICE auto rows_at(const Addresses& buffers, const int32_t* box, const int* at, int first) {
    if constexpr (kMapped) {
      constexpr Axes axes = kShape.rows;
      int own[kRank + 1] = {};
      decode<kRank, kShape.rows>(box, first, own);
      int line = 0;  // of the tensor
      ASPEN_UNROLL for (int i = 0; i < axes.count; ++i) line = line * kShape.row_extents[i] + own[axes.of[i]];
      return boxes_at<0>(buffers, at, line);
    } else {
      const auto* const data = static_cast<const Element*>(buffers.inputs[kShape.left.input]) + place_of<kShape.left.strides>(at);
      const auto place = [box, first](int row) {
        int own[kRank + 1] = {};
        decode<kRank, kShape.rows>(box, first + row, own);
        return place_of<kShape.left.strides>(own);
      };
      return placed_rows<Element, kShape.left.vector>(data, place, kShape.left.step, kShape.depth);
    }
  }

  // Columns from the one at `at` on.
  static ASPEN_DEVICE auto columns_at(const Addresses& buffers, const int* at) {
    if constexpr (kMapped) {
      return boxes_at<1>(buffers, at, at[kColumnAxis]);
    } else {
      return matrix_at<kShape.right, Element>(buffers, at, 0, kShape.depth);
    }
  }

  // Boxes of an operand whose first line is `line`.
  template <int kNumber>
  static ASPEN_DEVICE auto boxes_at(const Addresses& buffers, const int* at, int line) {
    constexpr MatrixMap map = kShape.maps[kNumber];
    MatrixBoxes<map.tensor.rank, map.depth_axis> boxes{{buffers.maps[kNumber], {}}};
    boxes.first.at[1 - map.depth_axis] = line;
    ASPEN_UNROLL for (int i = 0; i < map.outer.count; ++i) boxes.first.at[2 + i] = at[map.outer.of[i]];
    return boxes;
  }
};

}  // namespace aspen::cuda
