#include "axpy.h"

#include <array>
#include <type_traits>
#include <utility>

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// Rows of the right operand that are read side by side. Each is a stream from memory of its own, which processors foresee; a walk
// down narrow columns, whose every line lies on another page, they do not. Rows that are a multiple of 4 KiB apart share a set of
// the L1 cache, which holds as many lines.
constexpr int kStreams = 8;

// Some rows of the right operand, what they are scaled by, and whether the sums begin or end with them.
template <class T, int kRows, int kGroup>
struct Group {
  const T* rows;
  int64_t stride;
  float scales[kRows][kGroup];
  bool first, last;
};

// Vectors of columns that are computed side by side. One sum of kStreams products is a chain of instructions that wait for each
// other, so with one row, which reads matrices from the L2 cache as fast as it computes, there are several.
template <int kRows>
constexpr int kSideBySide = kRows == 1   ? 4
                            : kRows == 2 ? 2
                                         : 1;

// Vectors of columns, from `at` on, of out (+)= the group's scaled rows, or the first `lanes` lanes of one. The rows are summed
// first: a long sum of short sums loses less than one of products. Gives the steps of the epilogue that the sums began with.
template <bool kPartial, int kVectors, class T, int kRows, int kGroup>
ASPEN_INLINE int add_to(const Block& block, const Group<T, kRows, kGroup>& group, int64_t at, [[maybe_unused]] int lanes,
                        int begun) {
  const auto load_columns = [&](const auto* from, int = 0)
                                __attribute__((always_inline)) { return kPartial ? load_partial(from, lanes) : load(from); };
  float* const out = block.out + at;
  Floats sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kGroup; ++k) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Floats row = load_columns(group.rows + k * group.stride + at + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Floats scale = broadcast(group.scales[r][k]);
        sum[r][v] = k == 0 ? scale * row : fma(scale, row, sum[r][v]);
      }
    }
  }
  const auto each = [&](auto change) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) change(sum[r][v], r, v, out + r * block.out_stride + v * kLanes);
    }
  };
  if (group.first) {
    Floats begin[kRows][kVectors];
    begun = begin_in_registers(block.finish, block.column + at, begin, load_columns);
    each([&](Floats& x, int r, int v, float*) __attribute__((always_inline)) { x += begin[r][v]; });
  } else {
    each([&](Floats& x, int, int, const float* before) __attribute__((always_inline)) { x += load_columns(before); });
  }
  if (group.last && block.finish != nullptr) {
    finish_in_registers(*block.finish, begun, 0, block.column + at, sum, load_columns);
  }
  each([&](Floats x, int, int, float* to) __attribute__((always_inline)) {
    if constexpr (kPartial) {
      store_partial(to, x, lanes);
    } else {
      store(to, x);
    }
  });
  return begun;
}

// All products of the block, kStreams rows of the right operand at a time, the last ones one by one.
template <class T, int kRows>
void add_rows(const Block& block, RightOperand<T> weights, int64_t columns) noexcept {
  const int64_t depth = block.runs * block.depth;
  const int64_t whole = columns / kLanes * kLanes;
  const int rest = static_cast<int>(columns - whole);
  const float* const* pointers = block.pointers;
  int64_t in_run = 0;
  int begun = 0;
  const auto add = [&]<int kGroup>(std::integral_constant<int, kGroup>, int64_t k) {
    Group<T, kRows, kGroup> group{
        weights.at + k * weights.stride, weights.stride, {}, k == 0 && !block.accumulate, k + kGroup == depth};
    for (int i = 0; i < kGroup; ++i) {
      for (int r = 0; r < kRows; ++r) group.scales[r][i] = pointers[r][in_run];
      if (++in_run == block.depth) {
        in_run = 0;
        pointers += kBlockRows;
      }
    }
    int done = begun;
    constexpr int kWide = kSideBySide<kRows>;
    int64_t at = 0;
    for (; at + kWide * kLanes <= whole; at += kWide * kLanes) done = add_to<false, kWide>(block, group, at, 0, begun);
    for (; at < whole; at += kLanes) done = add_to<false, 1>(block, group, at, 0, begun);
    if (rest > 0) done = add_to<true, 1>(block, group, whole, rest, begun);
    begun = done;
  };
  int64_t k = 0;
  for (; k + kStreams <= depth; k += kStreams) add(std::integral_constant<int, kStreams>(), k);
  for (; k < depth; ++k) add(std::integral_constant<int, 1>(), k);
}

template <class T>
constexpr auto kByRows = []<int... kRow>(std::integer_sequence<int, kRow...>) {
  return std::array<void (*)(const Block&, RightOperand<T>, int64_t) noexcept, kFewRows>{add_rows<T, kRow + 1>...};
}(std::make_integer_sequence<int, kFewRows>());

}  // namespace

template <class T>
void add_scaled_rows(const Block& block, RightOperand<T> weights, int64_t columns) noexcept {
  kByRows<T>[block.rows - 1](block, weights, columns);
}
template void add_scaled_rows(const Block&, RightOperand<float>, int64_t) noexcept;
template void add_scaled_rows(const Block&, RightOperand<BF16>, int64_t) noexcept;
template void add_scaled_rows(const Block&, RightOperand<F16>, int64_t) noexcept;

}  // namespace aspen::cpu::ASPEN_TARGET
