// Moving planes of elements (rows x cols with any strides, counted in elements) between memory and lanes, and between places in
// memory.
#pragma once

#include <cstdint>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::ASPEN_TARGET {

// Elements as lanes.
void load_lanes(DType dtype, const void* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols, int32_t* to,
                int64_t to_row_stride);

// Lanes as elements. `from_step` is 1, or 0 where the lanes of a row are equal.
void store_lanes(DType dtype, const int32_t* from, int64_t from_row_stride, int64_t from_step, void* to, int64_t row_stride,
                 int64_t col_stride, int64_t rows, int64_t cols);

// `to` may be exactly `from`; otherwise they do not overlap.
void copy_elements(int64_t element_bytes, const void* from, int64_t from_row_stride, int64_t from_col_stride, void* to,
                   int64_t to_row_stride, int64_t to_col_stride, int64_t rows, int64_t cols);

}  // namespace aspen::cpu::ASPEN_TARGET
