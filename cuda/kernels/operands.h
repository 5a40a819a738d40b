// Operands, which say where a product's rows and columns are in global memory.
#pragma once

#include <cstdint>

#include "block.h"

namespace aspen::cuda {

// A matrix whose rows are given: element (r, k) at data + r * stride + k. Columns that lie along the depth are such rows too.
// data: [rows, depth]. at(line(row), k) -> [kVector]: elements k to k + kVector - 1 of a row, or nullptr from the depth on.
template <class Element_, int kVector_>
struct MatrixRows {
  static constexpr int kVector = kVector_;
  using Element = Element_;
  using Line = const Element*;
  const Element* data;
  int64_t stride;
  int depth;

  ASPEN_DEVICE const Element* any() const { return data; }
  ASPEN_DEVICE Line line(int row) const { return data + row * stride; }
  ASPEN_DEVICE const Element* at(Line line, int k) const { return k < depth ? line + k : nullptr; }
};

// Rows anywhere: element (r, k) at data + place(r) + k * step. `step` is 1 where vectors have more than one element.
// data: [rows, depth], whose rows `place` finds. at(line(row), k) -> [kVector].
template <class Element_, int kVector_, class Place>
struct PlacedRows {
  static constexpr int kVector = kVector_;
  using Element = Element_;
  using Line = const Element*;
  const Element* data;
  Place place;
  int64_t step;
  int depth;

  ASPEN_DEVICE const Element* any() const { return data; }
  ASPEN_DEVICE Line line(int row) const { return data + place(row); }
  ASPEN_DEVICE const Element* at(Line line, int k) const { return k < depth ? line + k * step : nullptr; }
};
template <class Element, int kVector, class Place>
ASPEN_DEVICE PlacedRows<Element, kVector, Place> placed_rows(const Element* data, const Place& place, int64_t step, int depth) {
  return {data, place, step, depth};
}

// A matrix whose columns are adjacent: element (k, c) at data + k * stride + c.
// data: [depth, columns]. at(k, c) -> [kVector]: columns c to c + kVector - 1 of line k, or nullptr from the depth on.
template <class Element_, int kVector_>
struct MatrixColumns {
  static constexpr int kVector = kVector_;
  using Element = Element_;
  const Element* data;
  int64_t stride;
  int depth;

  ASPEN_DEVICE const Element* any() const { return data; }
  ASPEN_DEVICE const Element* at(int k, int column) const { return k < depth ? data + k * stride + column : nullptr; }
};

// Columns whose taps are filled with zeros: each kTap of the depth are kRead lines of the matrix, then zeros.
// data: [depth / kTap * kRead, columns] -> [depth, columns].
template <class Element_, int kVector_, int kTap, int kRead>
struct TapColumns {
  static constexpr int kVector = kVector_;
  using Element = Element_;
  const Element* data;
  int64_t stride;
  int depth;

  ASPEN_DEVICE const Element* any() const { return data; }
  ASPEN_DEVICE const Element* at(int k, int column) const {
    const int of_tap = k % kTap;
    return k < depth && of_tap < kRead ? data + (k / kTap * kRead + of_tap) * stride + column : nullptr;
  }
};

// Rows of a convolution, which it multiplies with its weights. A row is a pixel of the output, the depth runs over taps and
// channels (kh, kw, c); pixels in the padding are zeros. So are channels from number kReadOfTap on, if it is not 0: they are not
// read. x [N, height, width, C] -> [pixels of the tile from first_row on, depth].
template <class Element_, int kVector_, int kReadOfTap = 0>
struct ConvRows {
  static constexpr int kVector = kVector_;
  using Element = Element_;
  struct Line {
    const Element* image;
    int y, x;  // where the first tap reads, perhaps in the padding
  };
  const Element* data;  // x [N, H, W, C]
  int64_t batch_stride, y_stride, x_stride;
  int height, width, channels;  // of x; channels: what a tap takes of the depth, a multiple of kVector
  int kernel_width, depth;      // depth: taps * channels
  int y_step, x_step;           // strides of the convolution
  int y_dilation, x_dilation;
  int top, left;                      // padding
  int first_image, first_y, first_x;  // the tile's first pixel in the output
  int tile_height, tile_width;
  int first_row;               // the block's first pixel, by its number in the tile
  int64_t channel_stride = 1;  // 1 where kVector is more

  ASPEN_DEVICE const Element* any() const { return data; }
  ASPEN_DEVICE Line line(int row_of_block) const {
    // Divisions without signs are shorter.
    const auto row = static_cast<uint32_t>(first_row + row_of_block), width_of_tile = static_cast<uint32_t>(tile_width);
    const uint32_t line = row / width_of_tile, height_of_tile = static_cast<uint32_t>(tile_height);
    const int x = static_cast<int>(row % width_of_tile), y = static_cast<int>(line % height_of_tile);
    const int image = static_cast<int>(line / height_of_tile);
    return {data + (first_image + image) * batch_stride, (first_y + y) * y_step - top, (first_x + x) * x_step - left};
  }
  ASPEN_DEVICE const Element* at(const Line& line, int k) const {
    const int tap = k / channels;
    const int y = line.y + tap / kernel_width * y_dilation, x = line.x + tap % kernel_width * x_dilation;
    // As unsigned, what is negative is too large.
    const bool inside = k < depth && static_cast<unsigned>(y) < static_cast<unsigned>(height) &&
                        static_cast<unsigned>(x) < static_cast<unsigned>(width);
    return inside ? line.image + y * y_stride + x * x_stride + (k - tap * channels) * channel_stride : nullptr;
  }
  // Counts the elements of the vector at k that are read; zeros follow.
  ASPEN_DEVICE int read_at(int k) const
    requires(kReadOfTap > 0)
  {
    const int left = kReadOfTap - k % channels;
    return left < 0 ? 0 : left < kVector ? left : kVector;
  }
};

// A slice of other rows' depth. rows: [rows, depth] -> [rows, last - first].
template <class Rows>
struct SliceOfRows {
  static constexpr int kVector = Rows::kVector;
  using Element = typename Rows::Element;
  using Line = typename Rows::Line;
  const Rows& rows;
  int first, last;

  ASPEN_DEVICE const Element* any() const { return rows.any(); }
  ASPEN_DEVICE Line line(int row) const { return rows.line(row); }
  ASPEN_DEVICE const Element* at(const Line& line, int k) const { return first + k < last ? rows.at(line, first + k) : nullptr; }
};
template <class Rows>
ASPEN_DEVICE SliceOfRows<Rows> slice_of_rows(const Rows& rows, int first, int last) {
  return {rows, first, last};
}

}  // namespace aspen::cuda
