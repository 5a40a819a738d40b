// A tile of a convolution whose operands are copied in boxes (tensor_copy.h). The rows of a block are a box of the output's
// pixels. What a tap reads of the input is one too: the same box, moved by the tap's place, with the convolution's strides as
// steps. What lies in the padding is outside of the tensor, where there are zeros.
#pragma once

#include "conv_tile.h"
#include "streamed_product.h"

namespace aspen::cuda {

struct ConvBoxesShape {
  int images, lines, pixels;  // extents of a box of the output
  int chunks;                 // chunks of a tap's channels
  int chunks_of_slice;        // chunks of the depth, or of a slice of it
  // The input [C, W, H, N] and the weights, [O, C, taps] or along the depth [C, taps, O]; the adjacent elements first.
  TensorShape maps[2];
};

// The blocks of a box of the output, for `multiply_blocks`: slices, boxes of pixels, and columns.
// rows(): [kRows, depth()], columns(): [depth(), num_columns()] -> sums: [kRows, num_columns()]. A chunk of the
// depth is Core::kDepth channels of one tap, zeros behind the last.
template <class Op, class Core, ConvTileShape kShape, ConvBoxesShape kBoxes>
class ConvBlocks {
 public:
  using Addresses = typename Op::Addresses;
  static constexpr int kRank = Op::kRank;
  static constexpr int kImage = kRank - 4, kY = kRank - 3, kX = kRank - 2, kChannel = kRank - 1;  // axes of the output
  static constexpr bool kSliced = kShape.slice > 0;
  static constexpr int kAcross = kBoxes.pixels, kDown = kBoxes.lines, kDeep = kBoxes.images, kRows = kAcross * kDown * kDeep;
  static constexpr int kChunks = kShape.window.kernel_height * kShape.window.kernel_width * kBoxes.chunks;

  // Begins at the first block.
  ASPEN_DEVICE ConvBlocks(const Addresses& buffers, const int32_t* box)
      : buffers_(buffers), box_(box), image_(box[kImage]), y_(box[kY]), x_(box[kX]), column_(box[kChannel]) {
    if constexpr (kSliced) slice_ = box[0];
  }

  ASPEN_DEVICE bool advance() {
    if (goes_on(column_, kChannel, Core::kColumns) || goes_on(x_, kX, kAcross) || goes_on(y_, kY, kDown)) return true;
    if (goes_on(image_, kImage, kDeep)) return true;
    if constexpr (kSliced) {
      return goes_on(slice_, 0, 1);
    } else {
      return false;
    }
  }

  static ASPEN_DEVICE int num_rows() { return kRows; }
  ASPEN_DEVICE int num_columns() const { return min_of(box_[kRank + kChannel] - column_, Core::kColumns); }
  ASPEN_DEVICE int depth() const { return min_of(kBoxes.chunks_of_slice, kChunks - first_chunk()) * Core::kDepth; }

  ASPEN_DEVICE auto rows() const {
    constexpr Window window = kShape.window;
    using Rows = PixelBoxes<kRows, kBoxes.chunks, window.kernel_width, window.y_dilation, window.x_dilation>;
    return Rows{&buffers_.maps[0], x_ * window.x_step - window.left, y_ * window.y_step - window.top, image_, first_chunk()};
  }
  ASPEN_DEVICE auto columns() const {
    using Columns = typename Either<kShape.weights_along_depth, TapLines<kBoxes.chunks>, TapBoxes<kBoxes.chunks>>::Type;
    return Columns{&buffers_.maps[1], column_, first_chunk()};
  }

  // sums: [count], the first of them at (row, column) of the block; its rows are [kDeep, kDown, kAcross] pixels.
  ASPEN_DEVICE void store(int row, int column, const float* sums, int count) const {
    int at[kRank];
    if constexpr (kSliced) at[0] = slice_;
    at[kImage] = image_ + row / (kAcross * kDown);
    at[kY] = y_ + row / kAcross % kDown;
    at[kX] = x_ + row % kAcross;
    at[kChannel] = column_ + column;
    const bool inside = at[kImage] < box_[kRank + kImage] && at[kY] < box_[kRank + kY] && at[kX] < box_[kRank + kX];
    if (inside) finish_sums<Op, kChannel, kShape.run>(buffers_, box_, at, sums, count);
  }

 private:
  ASPEN_DEVICE int first_chunk() const { return slice_ * kBoxes.chunks_of_slice; }

  // Goes on along an axis, or back to its beginning.
  ASPEN_DEVICE bool goes_on(int& at, int axis, int step) const {
    at += step;
    if (at < box_[kRank + axis]) return true;
    at = box_[axis];
    return false;
  }

  const Addresses& buffers_;
  const int32_t* box_;
  int slice_ = 0, image_, y_, x_, column_;
};

template <class Op, class Core, ConvTileShape kShape, ConvBoxesShape kBoxes>
struct ConvBoxesTile : Op {
  using Addresses = typename Op::Addresses;
  using OfBlocks = BlocksMemory<Core, true, Op::kSlices>;
  using Memory = typename OfBlocks::Type;
  static constexpr int kThreads = OfBlocks::kThreads, kRank = Op::kRank;

  static ASPEN_DEVICE constexpr TensorShape tensor(int number) { return kBoxes.maps[number]; }

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    multiply_blocks<kShape.run, Op::kSlices>(memory, ConvBlocks<Op, Core, kShape, kBoxes>(buffers, box));
  }
};

// A tile whose operands are copied in boxes where the device can, else by threads.
template <class Op, class Core, ConvTileShape kShape, ConvBoxesShape kBoxes>
using ConvInBoxes = typename Either<kHasWarpgroups, ConvBoxesTile<Op, Core, kShape, kBoxes>, ConvTile<Op, Core, kShape>>::Type;

}  // namespace aspen::cuda
