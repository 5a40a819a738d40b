// The matrix product as sums of scaled rows: for few rows of the left operand, where the right one's columns are adjacent.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace aspen::cpu::ASPEN_TARGET {

// `out` (+)= the block's rows, at most kFewRows, times `columns` columns of the right operand, row k of which is at + k * stride.
// Nothing beyond them is touched.
template <class T>
void add_scaled_rows(const Block& block, RightOperand<T> weights, int64_t columns) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
