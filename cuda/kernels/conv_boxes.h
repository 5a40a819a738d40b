// A tile of a convolution whose operands are copied in boxes (tensor_copy.h). The rows of a block are a box of the output's
// pixels. What a tap reads of the input is one too: the same box, moved by the tap's place, with the convolution's strides as
// steps. What lies in the padding is outside of the tensor, where there are zeros.
#pragma once

#include "conv_tile.h"
#include "tensor_copy.h"

namespace aspen::cuda {

struct ConvBoxesShape {
  int images, lines, pixels;  // of a box of the output
  int chunks;                 // of a tap's channels
  int chunks_of_slice;        // in how many the depth, or a slice of it, is gone through
  // The input [C, W, H, N] and the weights, [O, C, taps] or along the depth [C, taps, O]; the adjacent elements first.
  TensorShape maps[2];
};

template <class Op, class Core, ConvTileShape kShape, ConvBoxesShape kBoxes>
struct ConvBoxesTile : Op {
  using Addresses = typename Op::Addresses;
  using Memory = TensorMemory<Core, Core::kStages>;
  static constexpr int kThreads = Core::kThreads, kRank = Op::kRank;
  static constexpr int kImage = kRank - 4, kY = kRank - 3, kX = kRank - 2, kChannel = kRank - 1;  // axes of the output
  static constexpr bool kSliced = kShape.slice > 0;
  static constexpr int kAcross = kBoxes.pixels, kDown = kBoxes.lines, kDeep = kBoxes.images, kRows = kAcross * kDown * kDeep;
  static constexpr int kChunks = kShape.window.kernel_height * kShape.window.kernel_width * kBoxes.chunks;

  static ASPEN_DEVICE constexpr TensorShape tensor(int number) { return kBoxes.maps[number]; }

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    const int first_slice = kSliced ? box[0] : 0, last_slice = kSliced ? box[kRank] : 1;
    for (int slice = first_slice; slice < last_slice; ++slice) {
      for (int image = box[kImage]; image < box[kRank + kImage]; image += kDeep) {
        for (int y = box[kY]; y < box[kRank + kY]; y += kDown) {
          for (int x = box[kX]; x < box[kRank + kX]; x += kAcross) {
            for (int column = box[kChannel]; column < box[kRank + kChannel]; column += Core::kColumns) {
              block(buffers, box, {slice, image, y, x, column}, memory);
            }
          }
        }
      }
    }
  }

 private:
  struct First {
    int slice, image, y, x, column;
  };
  // A box of pixels and some columns, from the first on.
  static ASPEN_DEVICE void block(const Addresses& buffers, const int32_t* box, const First& first, Memory& memory) {
    constexpr Window window = kShape.window;
    using Columns = typename Either<kShape.weights_along_depth, TapLines<kBoxes.chunks>, TapBoxes<kBoxes.chunks>>::Type;
    using Rows = PixelBoxes<kRows, kBoxes.chunks, window.kernel_width, window.y_dilation, window.x_dilation>;
    const int first_chunk = first.slice * kBoxes.chunks_of_slice;
    const Rows rows{buffers.maps[0], first.x * window.x_step - window.left, first.y * window.y_step - window.top, first.image,
                    first_chunk};
    const Columns columns{buffers.maps[1], first.column, first_chunk};
    multiply_tile<kShape.run, Op::kSlices>(
        memory, rows, columns, kRows, min_of(box[kRank + kChannel] - first.column, Core::kColumns),
        min_of(kBoxes.chunks_of_slice, kChunks - first_chunk) * Core::kDepth,
        [&](int row, int column, const float* sums, int count) {
          int at[kRank];
          if constexpr (kSliced) at[0] = first.slice;
          at[kImage] = first.image + row / (kAcross * kDown);
          at[kY] = first.y + row / kAcross % kDown;
          at[kX] = first.x + row % kAcross;
          at[kChannel] = first.column + column;
          const bool inside = at[kImage] < box[kRank + kImage] && at[kY] < box[kRank + kY] && at[kX] < box[kRank + kX];
          if (inside) finish_sums<Op, kChannel, kShape.run>(buffers, box, at, sums, count);
        });
  }
};

// Copied in boxes where the device can, else by threads.
template <class Op, class Core, ConvTileShape kShape, ConvBoxesShape kBoxes>
using ConvInBoxes = typename Either<kHasWarpgroups, ConvBoxesTile<Op, Core, kShape, kBoxes>, ConvTile<Op, Core, kShape>>::Type;

}  // namespace aspen::cuda
