#include "panels.h"

#include <algorithm>
#include <cstddef>

#include "planes.h"

namespace aspen::cpu::ASPEN_TARGET {

void pack(const float* from, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, float* packed,
          int64_t first, int64_t total) noexcept {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t left = columns - column;
    const int64_t width = left > kLanes ? kPanel : kLanes;
    float* to = packed + column * total + first * width;
    const float* source = from + column * column_stride;
    if (column_stride == 1 && left >= width) {
      for (int64_t row = 0; row < rows; ++row, to += width, source += row_stride) {
        for (int64_t v = 0; v < width; v += kLanes) store(to + v, load(source + v));
      }
      continue;
    }
    const int64_t present = std::min(left, width);
    if (present < width) std::fill_n(to, rows * width, 0.0f);
    load_lanes(DType::kF32, source, row_stride, column_stride, rows, present, reinterpret_cast<int32_t*>(to), width);
  }
}

void pack(DType dtype, const void* from, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, float* packed,
          int64_t first, int64_t total) noexcept {
  if (dtype == DType::kF32) {
    return pack(static_cast<const float*>(from), row_stride, column_stride, rows, columns, packed, first, total);
  }
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t left = columns - column;
    const int64_t width = left > kLanes ? kPanel : kLanes;
    float* to = packed + column * total + first * width;
    if (left < width) std::fill_n(to, rows * width, 0.0f);
    load_lanes(dtype, static_cast<const std::byte*>(from) + column * column_stride * size_of(dtype), row_stride, column_stride,
               rows, std::min(left, width), reinterpret_cast<int32_t*>(to), width);
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
