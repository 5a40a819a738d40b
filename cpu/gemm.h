// The matrix product at the heart of matmul and conv2d: a block of rows times a panel of columns, summed in registers.
//
// The left operand is given by pointers: row r of the block is a sequence of runs of adjacent floats, so a convolution hands in
// where each tap of each pixel lies and needs no im2col. The right operand is read where it is or packed into panels; floats of
// 16 bits become float32 on the way, in registers where few rows read them, else when they are packed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aspen_jax/engine/kernel.h"
#include "finish.h"
#include "panels.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// A block of kBlockRows x kPanel sums fills the registers, but for one broadcast and one row of the panel. Twelve row pointers
// are as many as fit in the general registers of x86-64 beside the loop's own.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kBlockRows = 12;
#elif defined(__FMA__)
inline constexpr int kBlockRows = 6;
#else
inline constexpr int kBlockRows = 4;  // the product needs a register of its own where there is no fused multiply-add
#endif

// Up to this many rows the product is bound by reading the right operand. It is read along its columns where each is adjacent
// (dots.h), or else along its rows where they are, and longer than a panel's (axpy.h).
inline constexpr int kFewRows = kBlockRows / 2;

inline constexpr int kCacheLine = 64;  // bytes

struct Block {
  int rows;                      // 1 .. kBlockRows
  const float* const* pointers;  // [runs][kBlockRows]: where each row's run begins
  int64_t runs;
  int64_t depth;  // length of each run
  float* out;     // rows x columns, columns adjacent
  int64_t out_stride;
  bool accumulate;  // add to what `out` holds
  // What is done with the sums before they are stored; null: nothing.
  const Finish* finish = nullptr;
  int64_t column = 0;  // of `out`, where its operands begin
  bool exact = false;  // nothing beyond the last column may be written
};

// A right operand of float, BF16 or F16 in place. What `stride` counts, multiply here and multiply_columns (dots.h) say; k counts
// through the runs.
template <class T>
struct RightOperand {
  const T* at;
  int64_t stride;
};

// `out` (+)= the block's rows times `columns` columns of the right operand, whose row k is at + k * stride; nothing beyond them
// is touched. Where it has 16 bits an element, for at most kFewRows rows.
template <class T>
void multiply(const Block& block, RightOperand<T> weights, int64_t columns) noexcept;

// Multiplies, and leaves the operand packed in `packed`: it is in registers anyway, so that the stores cost next to nothing.
void multiply_and_pack(const Block& block, RightOperand<float> weights, int64_t columns, float* packed) noexcept;

// A piece of a right operand that is multiplied next, brought into the L2 cache meanwhile: as many rows, `stride` apart, as the
// packed one has, of `lines` cache lines.
struct Ahead {
  const float* at = nullptr;
  int64_t stride = 0;
  int64_t lines = 0;
};

// Whether lines are fetched ahead: only where a block has as many columns as a stored panel. With half of them there is a
// prefetch to twelve multiply-adds, and a Zen 3 core loses more arithmetic by them than it waits for lines not foreseen.
inline constexpr bool kFetchesAhead = kPanel == kStoredPanel;

// Multiplies by a packed right operand. Unless the block is exact all vectors of `out` are written whole: its rows have room for
// round_up(columns, kLanes). Each panel of columns takes one column of cache lines off `ahead`.
void multiply_packed(const Block& block, const float* packed, int64_t columns, Ahead& ahead) noexcept;

// Multiplies by a right operand that is stored in panels: its rows from `row` on, its columns from `column` on. Nothing beyond
// these columns is touched. `ahead` is a part of such an operand too.
void multiply_panels(const Block& block, const StoredPanels& weights, int64_t row, int64_t column, int64_t columns,
                     Ahead& ahead) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
