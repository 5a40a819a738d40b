#include "gemm.h"

#include <algorithm>
#include <array>
#include <utility>

namespace aspen::cpu::ASPEN_TARGET {

namespace {

using Micro = void (*)(const Block&, int lanes) noexcept;

// kRows x kVectors vectors of sums stay in registers from the first run to the last. `lanes` counts the columns of the last
// vector and is read only where kPartial.
template <int kRows, int kVectors, bool kPartial>
void micro(const Block& block, [[maybe_unused]] int lanes) noexcept {
  constexpr int kLast = kVectors - 1;
  const auto load_weights = [&](const float* from, int v) __attribute__((always_inline)) {
    return kPartial && v == kLast ? load_partial(from + v * kLanes, lanes) : load(from + v * kLanes);
  };
  Floats sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Floats{};
  }
  const float* weights = block.weights;
  const int64_t stride = block.weights_stride;
  const int64_t depth = block.depth;
  const float* const* pointers = block.pointers;
  for (int64_t run = 0; run < block.runs; ++run, pointers += kBlockRows) {
    const float* row[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) row[r] = pointers[r];
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) {
      Floats w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        w[v] = load_weights(weights, v);
        // The strips of a few rows are bound by memory, and each row of the operand may lie on a page of its own.
        if constexpr (kVectors > kPanelVectors) __builtin_prefetch(weights + 8 * stride + v * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Floats x = broadcast(row[r][k]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(x, w[v], sum[r][v]);
      }
      weights += stride;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* out = block.out + r * block.out_stride;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      if (kPartial && v == kLast) {
        if (block.accumulate) sum[r][v] += load_partial(out + v * kLanes, lanes);
        store_partial(out + v * kLanes, sum[r][v], lanes);
      } else {
        if (block.accumulate) sum[r][v] += load(out + v * kLanes);
        store(out + v * kLanes, sum[r][v]);
      }
    }
  }
}

// Micro kernels by number of rows, less one.
template <int kVectors, bool kPartial, size_t... kRow>
constexpr std::array<Micro, sizeof...(kRow)> by_rows(std::index_sequence<kRow...>) {
  return {micro<static_cast<int>(kRow) + 1, kVectors, kPartial>...};
}
using AllRows = std::make_index_sequence<kBlockRows>;
constexpr auto kPanels = by_rows<kPanelVectors, false>(AllRows{});
constexpr auto kSingles = by_rows<1, false>(AllRows{});
constexpr auto kPartials = by_rows<1, true>(AllRows{});

// As many vectors a row as leave registers for a row of weights and a broadcast.
constexpr int strip_vectors(int rows) { return std::min((kRegisters - 1) / (rows + 1), kRegisters / 2); }

template <size_t... kRow>
constexpr std::array<Micro, sizeof...(kRow)> strips(std::index_sequence<kRow...>) {
  return {micro<static_cast<int>(kRow) + 1, strip_vectors(static_cast<int>(kRow) + 1), false>...};
}
constexpr auto kStrips = strips(std::make_index_sequence<kFewRows>{});

}  // namespace

void multiply(const Block& block, int64_t columns) noexcept {
  Block part = block;
  const auto take = [&](Micro kernel, int64_t width) {
    kernel(part, static_cast<int>(width));
    part.weights += width;
    part.out += width;
    columns -= width;
  };
  if (block.rows <= kFewRows) {
    const int64_t width = strip_vectors(block.rows) * kLanes;
    while (columns >= width) take(kStrips[block.rows - 1], width);
  }
  while (columns >= kPanel) take(kPanels[block.rows - 1], kPanel);
  while (columns >= kLanes) take(kSingles[block.rows - 1], kLanes);
  if (columns > 0) take(kPartials[block.rows - 1], columns);
}

void multiply_packed(const Block& block, int64_t columns) noexcept {
  Block part = block;
  const int64_t depth = block.runs * block.depth;
  for (; columns > kLanes; columns -= kPanel) {
    part.weights_stride = kPanel;
    kPanels[block.rows - 1](part, 0);
    part.weights += depth * kPanel;
    part.out += kPanel;
  }
  if (columns > 0) {
    part.weights_stride = kLanes;
    kSingles[block.rows - 1](part, 0);
  }
}

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
    for (int64_t row = 0; row < rows; ++row, to += width, source += row_stride) {
      const int64_t present = std::min(left, width);
      for (int64_t c = 0; c < present; ++c) to[c] = source[c * column_stride];
      for (int64_t c = present; c < width; ++c) to[c] = 0;
    }
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
