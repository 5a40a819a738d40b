// A tile of a product: a box of the output. It is cut into blocks of Core::kRows rows by Core::kColumns columns, for each matrix
// that the outer axes choose. One block after the other is multiplied over the whole depth (product.h). Blocks that share rows
// follow each other, so that these come from the cache.
//
// Where a device has warpgroups and tensor maps describe both operands, these are copied in boxes (tensor_copy.h), perhaps by a
// warp of their own (streamed_product.h).
//
// left: [outer ..., rows ..., depth], right: [outer ..., depth, columns] -> output: [outer ..., rows ..., columns]. The axes have
// any order, and left may lack some of the outer ones.
#pragma once

#include "matrices.h"
#include "streamed_product.h"

namespace aspen::cuda {

struct ProductShape {
  int depth;
  int column_axis;             // the output's axis of columns; -1: there is one column
  Axes rows, outer;            // the output's axes that make up a row's number, and those that choose a matrix
  int row_extents[kMostAxes];  // [rows.count]: extents of the whole output along `rows`
  MatrixShape left, right;
  int run;            // adjacent sums that are stored at once
  MatrixMap maps[2];  // maps of left and right; of rank 0: there are none
};

// The blocks of a box of the output, for `multiply_blocks`: runs of rows, blocks of a run, and columns.
// box: [2, kRank], the first coordinates and the ends. rows(): [num_rows(), depth()], columns(): [depth(), num_columns()].
template <class Op, class Core, ProductShape kShape>
class ProductBlocks {
 public:
  using Addresses = typename Op::Addresses;
  using Element = typename Core::Element;
  static constexpr bool kMapped = kHasWarpgroups && kShape.maps[0].tensor.rank > 0;
  static constexpr int kRank = Op::kRank, kColumnAxis = kShape.column_axis;
  // Columns are read in whole vectors, so that the first may lie before the box.
  static constexpr int kUnit = kShape.right.along_depth ? 1 : kShape.right.vector;
  // The rows of a block that is copied in boxes are lines of one tensor: they follow each other there.
  static constexpr bool kByRuns = kMapped && kShape.rows.count > 1;

  // Begins at the first block.
  ASPEN_DEVICE ProductBlocks(const Addresses& buffers, const int32_t* box) : buffers_(buffers), box_(box) {
    begin<kRank, kShape.outer>(box, at_);
    if constexpr (kColumnAxis >= 0) at_[kColumnAxis] = first_column();
  }

  ASPEN_DEVICE bool advance() {
    if constexpr (kColumnAxis >= 0) {
      at_[kColumnAxis] += Core::kColumns;
      if (at_[kColumnAxis] < last_column()) return true;
      at_[kColumnAxis] = first_column();
    }
    row_ += Core::kRows;
    if (row_ < rows_of_run()) return true;
    row_ = 0;
    run_ += rows_of_run();
    if (run_ < count_along<kRank, kShape.rows>(box_)) return true;
    run_ = 0;
    return aspen::cuda::advance<kRank, kShape.outer>(box_, at_);
  }

  ASPEN_DEVICE int num_rows() const { return min_of(rows_of_run() - row_, Core::kRows); }
  ASPEN_DEVICE int num_columns() const {
    if constexpr (kColumnAxis < 0) {
      return 1;
    } else {
      return min_of(last_column() - at_[kColumnAxis], Core::kColumns);
    }
  }
  static ASPEN_DEVICE int depth() { return kShape.depth; }

  ASPEN_DEVICE auto rows() const {
    const int first = run_ + row_;  // the block's first row, by its number in the box
    if constexpr (kMapped) {
      constexpr Axes axes = kShape.rows;
      int own[kRank + 1] = {};
      decode<kRank, kShape.rows>(box_, first, own);
      int line = 0;  // the row's number in the tensor
      ASPEN_UNROLL for (int i = 0; i < axes.count; ++i) line = line * kShape.row_extents[i] + own[axes.of[i]];
      return boxes_at<kShape.maps[0]>(&buffers_.maps[0], at_, line);
    } else {
      const auto* const data =
          static_cast<const Element*>(buffers_.inputs[kShape.left.input]) + place_of<kShape.left.strides>(at_);
      const auto place = [box = box_, first](int row) {
        int own[kRank + 1] = {};
        decode<kRank, kShape.rows>(box, first + row, own);
        return place_of<kShape.left.strides>(own);
      };
      return placed_rows<Element, kShape.left.vector>(data, place, kShape.left.step, kShape.depth);
    }
  }
  ASPEN_DEVICE auto columns() const {
    if constexpr (kMapped) {
      return boxes_at<kShape.maps[1]>(&buffers_.maps[1], at_, at_[kColumnAxis]);
    } else {
      return matrix_at<kShape.right, Element>(buffers_, at_, 0, kShape.depth);
    }
  }

  // sums: [count], the first of them at (row, column) of the block.
  ASPEN_DEVICE void store(int row, [[maybe_unused]] int column, const float* sums, int count) const {
    int own[kRank + 1] = {};
    ASPEN_UNROLL for (int d = 0; d < kRank; ++d) own[d] = at_[d];
    decode<kRank, kShape.rows>(box_, run_ + row_ + row, own);
    if constexpr (kColumnAxis >= 0) own[kColumnAxis] += column;
    finish_sums<Op, kColumnAxis, kShape.run>(buffers_, box_, own, sums, count);
  }

 private:
  ASPEN_DEVICE int first_column() const { return box_[kColumnAxis] / kUnit * kUnit; }
  ASPEN_DEVICE int last_column() const { return box_[kRank + kColumnAxis]; }

  // Counts the box's rows that follow each other in the tensor: an outer axis counts where the box has all that is inside it.
  ASPEN_DEVICE int rows_of_run() const {
    if constexpr (kByRuns) {
      constexpr Axes axes = kShape.rows;
      int run = 1;
      bool whole = true;
      ASPEN_UNROLL for (int i = axes.count - 1; i >= 0; --i) {
        const int extent = box_[kRank + axes.of[i]] - box_[axes.of[i]];
        if (whole) run *= extent;
        whole = whole && extent == kShape.row_extents[i];
      }
      return run;
    } else {
      return count_along<kRank, kShape.rows>(box_);
    }
  }

  const Addresses& buffers_;
  const int32_t* box_;
  int at_[kRank + 1] = {};  // coordinates of a block's matrix and first column; other axes than those above have one element
  int run_ = 0, row_ = 0;   // the first row of a run in the box, and of the block in the run
};

template <class Op, class Core, ProductShape kShape>
struct ProductTile : Op {
  using Addresses = typename Op::Addresses;
  using Blocks = ProductBlocks<Op, Core, kShape>;
  using OfBlocks = BlocksMemory<Core, Blocks::kMapped, Op::kSlices>;
  using Memory = typename OfBlocks::Type;
  static constexpr int kThreads = OfBlocks::kThreads, kRank = Op::kRank;

  static ASPEN_DEVICE constexpr TensorShape tensor(int number) { return kShape.maps[number].tensor; }

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    multiply_blocks<kShape.run, Op::kSlices>(memory, Blocks(buffers, box));
  }
};

}  // namespace aspen::cuda
