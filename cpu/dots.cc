#include "dots.h"

#include <array>
#include <utility>

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// Columns whose sums the dot products of kFewRows rows keep in registers, beside the vectors that they read.
constexpr int kDotColumns = 4;

// kRows x kColumns sums of products along adjacent memory on both sides, a vector of partial sums for each.
template <class T, int kRows, int kColumns>
void dots(const Block& block, RightOperand<T> weights) noexcept {
  Floats sum[kRows][kColumns] = {};
  const T* columns = weights.at;
  const float* const* pointers = block.pointers;
  const int64_t whole = block.depth / kLanes * kLanes;
  const int rest = static_cast<int>(block.depth - whole);
  const auto add = [&](int64_t k, auto load_some) __attribute__((always_inline)) {
    Floats w[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) w[c] = load_some(columns + c * weights.stride + k);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Floats x = load_some(pointers[r] + k);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sum[r][c] = fma(x, w[c], sum[r][c]);
    }
  };
  for (int64_t run = 0; run < block.runs; ++run, pointers += kBlockRows, columns += block.depth) {
    for (int64_t k = 0; k < whole; k += kLanes) add(k, [](const auto* from) { return load(from); });
    if (rest > 0) add(whole, [&](const auto* from) { return load_partial(from, rest); });
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* const out = block.out + r * block.out_stride;
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) out[c] = (block.accumulate ? out[c] : 0) + sum_of_lanes(sum[r][c]);
  }
}

template <class T>
constexpr auto kDots = []<int... kRow>(std::integer_sequence<int, kRow...>) {
  return std::array<std::array<void (*)(const Block&, RightOperand<T>) noexcept, 2>, kFewRows>{
      {{dots<T, kRow + 1, 1>, dots<T, kRow + 1, kDotColumns>}...}};
}(std::make_integer_sequence<int, kFewRows>());

}  // namespace

template <class T>
void multiply_columns(const Block& block, RightOperand<T> weights, int64_t columns) noexcept {
  Block part = block;
  for (int64_t width = kDotColumns; columns > 0; columns -= width) {
    if (columns < kDotColumns) width = 1;
    kDots<T>[block.rows - 1][width == kDotColumns](part, weights);
    weights.at += width * weights.stride;
    part.out += width;
  }
}
template void multiply_columns(const Block&, RightOperand<float>, int64_t) noexcept;
template void multiply_columns(const Block&, RightOperand<BF16>, int64_t) noexcept;
template void multiply_columns(const Block&, RightOperand<F16>, int64_t) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
