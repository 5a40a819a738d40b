// The matrix product as dot products: for few rows of the left operand, where the depth of both is in adjacent memory.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace aspen::cpu::ASPEN_TARGET {

// `out` (+)= the block's rows, at most kFewRows, times `columns` columns of the right operand, column c of which is in adjacent
// memory, at + c * stride. Nothing beyond them is touched.
template <class T>
void multiply_columns(const Block& block, RightOperand<T> weights, int64_t columns) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
