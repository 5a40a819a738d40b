// Panels: how the columns of a matrix lie in memory so that a product (gemm.h) reads its right operand from one end to the other.
#pragma once

#include <cstdint>

#include "elements.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The columns that a product keeps in registers.
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanel = kPanelVectors * kLanes;

// A right operand stored in panels: kStoredPanel columns side by side for each of `rows` rows, then the next panel; what is
// missing of the last one is zero. The same for all targets, so that what was stored for one serves any.
inline constexpr int kStoredPanel = 32;
struct StoredPanels {
  const float* at;
  int64_t rows;

  const float* find(int64_t row, int64_t column) const {
    return at + (column / kStoredPanel * rows + row) * kStoredPanel + column % kStoredPanel;
  }
};

// Floats that `rows` rows of `columns` columns take when packed.
constexpr int64_t packed_size(int64_t rows, int64_t columns) { return rows * round_up(columns, kLanes); }

// Packs `rows` rows of `columns` columns at `from` as rows [first, first + rows) of a packed operand of `total` rows. Panels of
// kPanel columns follow each other, the last one a vector narrower where that suffices; missing columns are zero.
void pack(const float* from, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, float* packed,
          int64_t first, int64_t total) noexcept;

// Packs floats of any size.
void pack(DType dtype, const void* from, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, float* packed,
          int64_t first, int64_t total) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
