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
    constexpr Window window = kShape.window;
    using Columns =
        typename Either<kShape.weights_along_depth, TapLines<kBoxes.chunks>, TapBoxes<kBoxes.chunks>>::Type;
    using Rows = PixelBoxes<kRows, kBoxes.chunks, window.kernel_width, window.y_dilation, window.x_dilation>;
    const int parts = (box[kRank + kChannel] - box[kChannel] + Core::kColumns - 1) / Core::kColumns;
    const int across = (box[kRank + kX] - box[kX] + kAcross - 1) / kAcross;
    const int down = (box[kRank + kY] - box[kY] + kDown - 1) / kDown;
    const int deep = (box[kRank + kImage] - box[kImage] + kDeep - 1) / kDeep;
    const int slices = kSliced ? box[kRank] - box[0] : 1;
    for (int all = 0; all < parts * across * down * deep * slices; ++all) {
      const int first_column = box[kChannel] + all % parts * Core::kColumns;
      const int first_x = box[kX] + all / parts % across * kAcross;
      const int first_y = box[kY] + all / parts / across % down * kDown;
      const int first_image = box[kImage] + all / parts / across / down % deep * kDeep;
      const int slice = kSliced ? box[0] + all / parts / across / down / deep : 0, first_chunk = slice * kBoxes.chunks_of_slice;
      const Rows rows{buffers.maps[0], first_x * window.x_step - window.left, first_y * window.y_step - window.top, first_image,
                      first_chunk};
      const Columns columns{buffers.maps[1], first_column, first_chunk};
      multiply_tile<kShape.run, Op::kSlices>(
          memory, rows, columns, kRows, min_of(box[kRank + kChannel] - first_column, Core::kColumns),
          min_of(kBoxes.chunks_of_slice, kChunks - first_chunk) * Core::kDepth,
          [&](int row, int column, const float* sums, int count) {
            int at[kRank];
            if constexpr (kSliced) at[0] = slice;
            at[kImage] = first_image + row / (kAcross * kDown);
            at[kY] = first_y + row / kAcross % kDown;
            at[kX] = first_x + row % kAcross;
            at[kChannel] = first_column + column;
            const bool inside = at[kImage] < box[kRank + kImage] && at[kY] < box[kRank + kY] && at[kX] < box[kRank + kX];
            if (inside) finish_sums<Op, kChannel, kShape.run>(buffers, box, at, sums, count);
          });
    }
  }
};

// Copied in boxes where the device can, else by threads.
template <class Op, class Core, ConvTileShape kShape, ConvBoxesShape kBoxes>
using ConvInBoxes = typename Either<kHasWarpgroups, ConvBoxesTile<Op, Core, kShape, kBoxes>, ConvTile<Op, Core, kShape>>::Type;

}  // namespace aspen::cuda
