// A tile of a convolution as a product: a box of the output, whose pixels are rows, in the order of the box. The depth runs over
// taps and channels; what a pixel reads is gathered by threads (ConvRows in operands.h). Blocks of Core::kRows pixels by
// Core::kColumns channels are multiplied one after the other (product.h), for each group of channels that the box meets.
//
// x: [N, height, width, C], weights: [kh, kw, C / groups, outputs] -> output: [N, H, W, outputs], by products of pixels [N * H *
// W, depth] and a group's weights [depth, outputs / groups]. weights_along_depth: weights are [outputs, depth] in memory.
//
// The output of slices of the depth has an axis more, which comes first.
#pragma once

#include "elements.h"
#include "operands.h"
#include "product.h"
#include "window.h"

namespace aspen::cuda {

struct ConvTileShape {
  Window window;
  int groups;    // groups of channels
  int channels;  // channels of a group of the input, or of taps that are one
  int tap;       // what a tap takes of the depth: its channels and zeros
  int outputs;   // channels of all groups
  int depth;
  int slice;                 // so much of the depth is a slice; 0: there are no slices
  Strides input;             // image, line, pixel, channel
  int input_vector;          // adjacent elements that may be read at once; 1 where channels are not adjacent
  int weights_vector;        // adjacent elements of the weights that may be read at once
  bool weights_along_depth;  // whether those lie along the depth, or are outputs
  int run;                   // adjacent sums that are stored at once
};

// Counts the channels of a tap that are read; 0: all that it takes of the depth.
template <ConvTileShape kShape>
inline constexpr int kReadOfTap = kShape.channels < kShape.tap ? kShape.channels : 0;

// Gives what the pixels of a box from number `first_row` on read, of a group's channels.
// box: [2, kRank] of the output -> rows: [pixels of the box from first_row on, depth].
template <class Element, ConvTileShape kShape, int kRank, class Addresses>
ASPEN_DEVICE auto pixels_at(const Addresses& buffers, const int32_t* box, int group, int first_row) {
  constexpr int kImage = kRank - 4, kY = kRank - 3, kX = kRank - 2;  // axes of the output
  constexpr Window window = kShape.window;
  constexpr Strides input = kShape.input;
  return ConvRows<Element, kShape.input_vector, kReadOfTap<kShape>>{
      .data = static_cast<const Element*>(buffers.inputs[0]) + group * kShape.channels * input.of[3],
      .batch_stride = input.of[0],
      .y_stride = input.of[1],
      .x_stride = input.of[2],
      .height = window.height,
      .width = window.width,
      .channels = kShape.tap,
      .kernel_width = window.kernel_width,
      .depth = kShape.depth,
      .y_step = window.y_step,
      .x_step = window.x_step,
      .y_dilation = window.y_dilation,
      .x_dilation = window.x_dilation,
      .top = window.top,
      .left = window.left,
      .first_image = box[kImage],
      .first_y = box[kY],
      .first_x = box[kX],
      .tile_height = box[kRank + kY] - box[kY],
      .tile_width = box[kRank + kX] - box[kX],
      .first_row = first_row,
      .channel_stride = input.of[3],
  };
}

template <class Op, class Core, ConvTileShape kShape>
struct ConvTile : Op {
  using Addresses = typename Op::Addresses;
  using Element = typename Core::Element;
  using Memory = ProductMemory<Core, Core::kStages>;
  static constexpr int kThreads = Core::kThreads, kRank = Op::kRank;
  static constexpr int kImage = kRank - 4, kY = kRank - 3, kX = kRank - 2, kChannel = kRank - 1;  // axes of the output
  static constexpr bool kSliced = kShape.slice > 0, kGrouped = kShape.groups > 1;
  static constexpr int kOfGroup = kShape.outputs / kShape.groups;
  static constexpr int kDepth = kSliced ? kShape.slice : kShape.depth;
  // Columns are read in whole vectors, so that the first may lie before the box.
  static constexpr int kUnit = kShape.weights_along_depth ? 1 : kShape.weights_vector;

  // box: [2, kRank] of the output -> blocks of [Core::kRows, Core::kColumns], pixels by channels.
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    const int matrices = first_matrix(box) + count_of_matrices(box);  // groups, or slices
    for (int matrix = first_matrix(box); matrix < matrices; ++matrix) {
      for (int row = 0; row < pixels_of(box); row += Core::kRows) {
        for (int column = first_column(box, matrix); column < last_column(box, matrix); column += Core::kColumns) {
          block(buffers, box, matrix, row, column, memory);
        }
      }
    }
  }

 private:
  static ASPEN_DEVICE int pixels_of(const int32_t* box) {
    return (box[kRank + kImage] - box[kImage]) * (box[kRank + kY] - box[kY]) * (box[kRank + kX] - box[kX]);
  }

  // Multiplies one block: pixels from first_row on, and columns from `first` on.
  // pixels: [kRows, kDepth], weights: [kDepth, kColumns] -> sums: [kRows, kColumns], as far as the box has them.
  static ASPEN_DEVICE void block(const Addresses& buffers, const int32_t* box, int matrix, int first_row, int first,
                                 Memory& memory) {
    const int first_k = kSliced ? matrix * kDepth : 0, last_k = min_of(first_k + kDepth, kShape.depth);
    const auto pixels = pixels_at<Element, kShape, kRank>(buffers, box, kGrouped ? matrix : 0, first_row);
    multiply_tile<kShape.run, Op::kSlices>(
        memory, slice_of(pixels, first_k, last_k), weights_at(buffers, first, first_k, last_k),
        min_of(pixels_of(box) - first_row, Core::kRows), min_of(last_column(box, matrix) - first, Core::kColumns), kDepth,
        [&](int row, int column, const float* sums, int count) {
          const auto pixel = static_cast<uint32_t>(first_row + row);  // divisions without signs are shorter
          const auto height = static_cast<uint32_t>(box[kRank + kY] - box[kY]);
          const auto width = static_cast<uint32_t>(box[kRank + kX] - box[kX]);
          int at[kRank];
          if constexpr (kSliced) at[0] = matrix;
          at[kImage] = box[kImage] + static_cast<int>(pixel / width / height);
          at[kY] = box[kY] + static_cast<int>(pixel / width % height);
          at[kX] = box[kX] + static_cast<int>(pixel % width);
          at[kChannel] = first + column;
          finish_sums<Op, kChannel, kShape.run>(buffers, box, at, sums, count);
        });
  }

  // The groups that a box meets, or its slices.
  static ASPEN_DEVICE int first_matrix(const int32_t* box) {
    if constexpr (kGrouped) {
      return box[kChannel] / kOfGroup;
    } else {
      return kSliced ? box[0] : 0;
    }
  }
  static ASPEN_DEVICE int count_of_matrices(const int32_t* box) {
    if constexpr (kGrouped) {
      return (box[kRank + kChannel] + kOfGroup - 1) / kOfGroup - first_matrix(box);
    } else {
      return kSliced ? box[kRank] - box[0] : 1;
    }
  }

  // The columns of a box that a matrix has.
  static ASPEN_DEVICE int first_column(const int32_t* box, int matrix) {
    const int first = box[kChannel] / kUnit * kUnit;
    return kGrouped ? max_of(first, matrix * kOfGroup) : first;
  }
  static ASPEN_DEVICE int last_column(const int32_t* box, int matrix) {
    const int last = box[kRank + kChannel];
    return kGrouped ? min_of(last, (matrix + 1) * kOfGroup) : last;
  }

  // Gives the weights of columns from number `first` on, of a slice of the depth: [last_k - first_k, columns].
  static ASPEN_DEVICE auto weights_at(const Addresses& buffers, int first, int first_k, int last_k) {
    const auto* const weights = static_cast<const Element*>(buffers.inputs[1]);
    if constexpr (kShape.weights_along_depth) {
      const Element* const own = weights + int64_t{first} * kShape.depth + first_k;
      return MatrixRows<Element, kShape.weights_vector>{own, kShape.depth, last_k - first_k};
    } else if constexpr (kReadOfTap<kShape> > 0) {
      return TapColumns<Element, kUnit, kShape.tap, kShape.channels>{weights + first, kShape.outputs, last_k};
    } else {
      return MatrixColumns<Element, kUnit>{weights + first + int64_t{first_k} * kShape.outputs, kShape.outputs, last_k - first_k};
    }
  }

  template <class Pixels>
  static ASPEN_DEVICE auto slice_of(const Pixels& pixels, [[maybe_unused]] int first, [[maybe_unused]] int last) {
    if constexpr (kSliced) {
      return slice_of_rows(pixels, first, last);
    } else {
      return pixels;
    }
  }
};

}  // namespace aspen::cuda
