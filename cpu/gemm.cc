#include "gemm.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace aspen::cpu::ASPEN_TARGET {

int few_rows();  // target.cc

int few_rows() { return kFewRows; }

namespace {

template <class T>
using Micro = void (*)(const Block&, int64_t at, RightOperand<T>, int lanes, float* packed, const Ahead*) noexcept;

template <int kRows, int kVectors>
ASPEN_INLINE void prefetch_rows(const float* from, int64_t stride) {
  constexpr int kFloats = kCacheLine / static_cast<int>(sizeof(float));
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int at = 0; at < kVectors * kLanes; at += kFloats) __builtin_prefetch(from + r * stride + at);
  }
}

// What of a panel a micro kernel takes: whole vectors, or only some lanes of the last one, or at most half of its lanes.
enum class Last { kWhole, kPartial, kHalf };

// kRows x kVectors vectors of sums, from column `at` of the block on, stay in registers from the first run to the last. `lanes`
// counts the columns of the last vector and is not read where it is whole; `packed` receives the weights as they are read, where
// kPack; a line a row of `ahead` is fetched, where kFetch. All that changes from call to call comes in registers or words of its
// own: a structure that is written in words and then copied in vectors waits until the sums before it have left for the cache.
template <class T, int kRows, int kVectors, Last kLastVector, bool kPack, bool kFetch>
ASPEN_INLINE void sum_panel(const Block& block, int64_t at, RightOperand<T> operand, [[maybe_unused]] int lanes,
                            [[maybe_unused]] float* packed, [[maybe_unused]] const Ahead* ahead) {
  constexpr int kLast = kVectors - 1;
  constexpr bool kPartial = kLastVector != Last::kWhole, kHalf = kLastVector == Last::kHalf;
  constexpr int kWhole = kHalf ? kLast : kVectors;
  constexpr int kVectorsOfCacheLine = kCacheLine / (kLanes * static_cast<int>(sizeof(T)));
  const auto load_columns = [&](const auto* from, int v) __attribute__((always_inline)) {
    return kPartial && v == kLast ? load_partial(from, lanes) : load(from);
  };
  // Once, not again after each store, which for all that the compiler knows might write to them.
  const Finish* const finish = block.finish;
  const int64_t out_stride = block.out_stride;
  float* const first_out = block.out + at;
  const int64_t column = block.column + at;
  Floats sum[kRows][kVectors];
  const int begun = begin_in_registers(finish, column, sum, load_columns);
  [[maybe_unused]] HalfFloats half[kRows];
  if constexpr (kHalf) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) half[r] = low_half(sum[r][kLast]);
  }
  // What is written, and read to finish it, mostly lies beyond the L2 cache: ask for it while the sums are worked out.
  if (finish != nullptr || block.exact) {
    prefetch_rows<kRows, kVectors>(first_out, out_stride);
    if (finish != nullptr && finish->reads_rows) {
      for (const Finish::Step* step = finish->steps; step != finish->steps + finish->length; ++step) {
        if (step->row_stride != 0) prefetch_rows<kRows, kVectors>(step->operand + column, step->row_stride);
      }
    }
  }
  const T* weights = operand.at;
  const int64_t stride = operand.stride;
  [[maybe_unused]] const float* fetched = kFetch ? ahead->at : nullptr;
  [[maybe_unused]] const int64_t fetched_stride = kFetch ? ahead->stride : 0;
  const int64_t depth = block.depth;
  const float* const* pointers = block.pointers;
  for (int64_t run = 0; run < block.runs; ++run, pointers += kBlockRows) {
    const float* row[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) row[r] = pointers[r];
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) {
      Floats w[kVectors];
      [[maybe_unused]] HalfFloats w_half;
      if constexpr (kHalf) w_half = load_partial_half(weights + kLast * kLanes, lanes);
#pragma GCC unroll 16
      for (int v = 0; v < kWhole; ++v) {
        w[v] = load_columns(weights + v * kLanes, v);
        // Few rows are bound by memory.
        if constexpr (kPack || kRows <= kFewRows) {
          constexpr int kRowsAhead = kVectors > kPanelVectors || kPack ? 8 : 24;
          if (v % kVectorsOfCacheLine == 0) __builtin_prefetch(weights + kRowsAhead * stride + v * kLanes);
        }
        if constexpr (kPack) store(packed + v * kLanes, w[v]);
      }
      if constexpr (kPack) packed += kVectors * kLanes;
      if constexpr (kFetch) {
        __builtin_prefetch(fetched, 0, 2);
        fetched += fetched_stride;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Floats x = broadcast(row[r][k]);
#pragma GCC unroll 16
        for (int v = 0; v < kWhole; ++v) sum[r][v] = fma(x, w[v], sum[r][v]);
        if constexpr (kHalf) half[r] = low_half(x) * w_half + half[r];
      }
      weights += stride;
    }
  }
  if constexpr (kHalf) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r][kLast] = widened(half[r]);
  }
  if (finish != nullptr) finish_in_registers(*finish, begun, 0, column, sum, load_columns);
  const auto each_row = [&](auto take) __attribute__((always_inline)) {
    float* out = first_out;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, out += out_stride) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) take(out + v * kLanes, v, sum[r][v]);
    }
  };
  if (block.accumulate) {
    each_row([&](float* out, int v, Floats& s) __attribute__((always_inline)) { s += load_columns(out, v); });
  }
  each_row([&](float* out, int v, Floats s) __attribute__((always_inline)) {
    if (kPartial && v == kLast) {
      store_partial(out, s, lanes);
    } else {
      store(out, s);
    }
  });
}

template <class T, int kRows, int kVectors, Last kLastVector, bool kPack, bool kFetch = false>
void micro(const Block& block, int64_t at, RightOperand<T> operand, int lanes, float* packed, const Ahead* ahead) noexcept {
  sum_panel<T, kRows, kVectors, kLastVector, kPack, kFetch>(block, at, operand, lanes, packed, ahead);
}

// How whole panels follow each other in a right operand: `left` of them side by side, then `every` after each jump of so many
// floats.
struct PanelOrder {
  int64_t left, every, jump;
};

// `count` whole panels: with few products a sum, what all panels of a block share costs as much as what they do not.
template <int kRows>
void whole_panels(const Block& of_panels, int64_t at, RightOperand<float> operand, int64_t count, PanelOrder order) noexcept {
  const Block block = of_panels;  // which no store can change
  for (; count > 0; --count) {
    sum_panel<float, kRows, kPanelVectors, Last::kWhole, false, false>(block, at, operand, 0, nullptr, nullptr);
    at += kPanel;
    operand.at += kPanel;
    if (--order.left > 0) continue;
    order.left = order.every;
    operand.at += order.jump;
  }
}

// Micro kernels by number of rows, less one.
template <class T>
constexpr int kMostRows = Narrow<T> ? kFewRows : kBlockRows;
template <class T, int kVectors, Last kLastVector, bool kPack>
constexpr auto kByRows = []<int... kRow>(std::integer_sequence<int, kRow...>) {
  return std::array<Micro<T>, kMostRows<T>>{micro<T, kRow + 1, kVectors, kLastVector, kPack>...};
}(std::make_integer_sequence<int, kMostRows<T>>());

constexpr auto kWholePanels = []<int... kRow>(std::integer_sequence<int, kRow...>) {
  return std::array<void (*)(const Block&, int64_t, RightOperand<float>, int64_t, PanelOrder) noexcept, kBlockRows>{
      whole_panels<kRow + 1>...};
}(std::make_integer_sequence<int, kBlockRows>());

// Those that multiply a whole packed panel and fetch ahead, where any do.
constexpr auto kFetching = []<int... kRow>(std::integer_sequence<int, kRow...>) {
  return std::array<Micro<float>, kBlockRows>{micro<float, kRow + 1, kPanelVectors, Last::kWhole, false, true>...};
}(std::make_integer_sequence<int, kBlockRows>());

// The kernel for a panel of `columns` columns, of which at most kPanel are taken.
template <class T, bool kPack>
Micro<T> panel_kernel(int rows, int64_t columns) {
  const int i = rows - 1;
  if (columns >= kPanel) return kByRows<T, kPanelVectors, Last::kWhole, kPack>[i];
  if constexpr (kHasHalves && !kPack && std::is_same_v<T, float>) {
    if (columns <= kLanes / 2) return kByRows<T, 1, Last::kHalf, false>[i];
    if (columns > kLanes && columns <= kLanes + kLanes / 2) return kByRows<T, kPanelVectors, Last::kHalf, false>[i];
  }
  if (columns > kLanes) return kByRows<T, kPanelVectors, Last::kPartial, kPack>[i];
  return columns == kLanes ? kByRows<T, 1, Last::kWhole, kPack>[i] : kByRows<T, 1, Last::kPartial, kPack>[i];
}

// Few rows take a stored panel at once where it is wider than a block and leaves registers for a vector of each row.
constexpr int kStoredVectors = kStoredPanel / kLanes;
constexpr bool takes_stored_panel(int rows) { return kStoredPanel > kPanel && kStoredVectors * (rows + 1) < kRegisters; }
constexpr auto kWholeStored = []<int... kRow>(std::integer_sequence<int, kRow...>) {
  return std::array<Micro<float>, kFewRows>{
      (takes_stored_panel(kRow + 1) ? micro<float, kRow + 1, kStoredVectors, Last::kWhole, false> : nullptr)...};
}(std::make_integer_sequence<int, kFewRows>());

// What is left of an operand beyond the columns that `take` handles.
template <class T>
struct Walk {
  const Block& block;
  RightOperand<T> weights;
  int64_t columns;
  int64_t at = 0;

  void take(Micro<T> kernel, int64_t width, float* packed) {
    kernel(block, at, weights, static_cast<int>((std::min(width, columns) - 1) % kLanes + 1), packed, nullptr);
    weights.at += width;
    at += width;
    columns -= width;
  }
  int64_t panel() const { return columns > kLanes ? kPanel : kLanes; }
};

}  // namespace

template <class T>
void multiply(const Block& block, RightOperand<T> weights, int64_t columns) noexcept {
  Walk<T> walk{block, weights, columns};
  while (walk.columns > 0) walk.take(panel_kernel<T, false>(block.rows, walk.columns), walk.panel(), nullptr);
}
template void multiply(const Block&, RightOperand<float>, int64_t) noexcept;
template void multiply(const Block&, RightOperand<BF16>, int64_t) noexcept;
template void multiply(const Block&, RightOperand<F16>, int64_t) noexcept;

void multiply_and_pack(const Block& block, RightOperand<float> weights, int64_t columns, float* packed) noexcept {
  Walk<float> walk{block, weights, columns};
  while (walk.columns > 0) {
    const int64_t width = walk.panel();
    walk.take(panel_kernel<float, true>(block.rows, walk.columns), width, packed);
    packed += block.runs * block.depth * width;
  }
}

void multiply_packed(const Block& block, const float* packed, int64_t columns, Ahead& ahead) noexcept {
  const int64_t depth = block.runs * block.depth;
  // The last panel may be written beyond its columns, unless the block is exact.
  const int64_t whole = (columns + (block.exact ? 0 : kLanes - 1)) / kPanel;
  const int64_t fetching = kFetchesAhead ? std::min(whole, ahead.lines) : 0;
  int64_t at = 0;
  for (; at < fetching * kPanel; at += kPanel) {
    kFetching[block.rows - 1](block, at, {packed + at * depth, kPanel}, 0, nullptr, &ahead);
    ahead.at += kCacheLine / static_cast<int64_t>(sizeof(float));
    --ahead.lines;
  }
  kWholePanels[block.rows - 1](block, at, {packed + at * depth, kPanel}, whole - fetching, {1, 1, (depth - 1) * kPanel});
  at = whole * kPanel;
  if (columns <= at) return;
  const int64_t width = columns - at > kLanes ? kPanel : kLanes;
  const int64_t written = block.exact ? std::min(columns - at, width) : width;
  const int lanes = static_cast<int>((written - 1) % kLanes + 1);
  panel_kernel<float, false>(block.rows, written)(block, at, {packed + at * depth, width}, lanes, nullptr, nullptr);
}

void multiply_panels(const Block& block, const StoredPanels& weights, int64_t row, int64_t column, int64_t columns,
                     Ahead& ahead) noexcept {
  constexpr int64_t kLines = kStoredPanel * sizeof(float) / kCacheLine;
  const bool wide = block.rows <= kFewRows && takes_stored_panel(block.rows);
  const int64_t next_panel = (weights.rows - 1) * kStoredPanel;  // from the end of a panel's row
  int64_t at = 0;
  for (int64_t width; columns > 0; columns -= width) {
    const RightOperand<float> panel{weights.find(row, column), kStoredPanel};
    const int64_t left = std::min(columns, kStoredPanel - column % kStoredPanel);
    if (wide && left == kStoredPanel) {
      width = left;
      kWholeStored[block.rows - 1](block, at, panel, 0, nullptr, nullptr);
    } else if (kFetchesAhead && left >= kPanel && ahead.lines > 0) {
      width = kPanel;
      kFetching[block.rows - 1](block, at, panel, 0, nullptr, &ahead);
      ahead.at += kCacheLine / static_cast<int64_t>(sizeof(float));
      if (--ahead.lines % kLines == 0) ahead.at += next_panel;
    } else if (left >= kPanel && column % kPanel == 0) {
      // Up to the last whole one, from any part of a stored panel on.
      width = columns / kPanel * kPanel;
      kWholePanels[block.rows - 1](block, at, panel, width / kPanel, {left / kPanel, kStoredPanel / kPanel, next_panel});
    } else {
      width = std::min<int64_t>(left, kPanel);
      panel_kernel<float, false>(block.rows, width)(block, at, panel, static_cast<int>((width - 1) % kLanes + 1), nullptr,
                                                    nullptr);
    }
    at += width;
    column += width;
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
