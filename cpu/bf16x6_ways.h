// How bf16x6 splits what it reads and multiplies parts (bf16x6.cc): by vectors, and by matrix units (AMX).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bf16x6.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

inline constexpr int64_t kDepth = kStepDepth;
inline constexpr int64_t kColumns = kStepColumns;
inline constexpr int64_t kRows = 32;  // positions that are multiplied at a time
inline constexpr int64_t kPartBytes = kDepth * 2;

// What of each step of a panel is fetched from memory while a step is multiplied: these sixths of it, a step ahead.
inline constexpr int64_t kSixths = 6;
struct Fetched {
  int64_t begin = 0, end = 0;
};

struct ByVectors {
  // The channels of a position, scaled where there is a scale; the parts of a block of them lie `part` bytes apart, and those of
  // the next block behind these.
  template <bool kScaled>
  static void split(const float* from, const float* scale, int64_t channels, std::byte* to, int64_t part) noexcept {
    for (int64_t block = 0; block < channels; block += kDepth, to += kParts * part) {
      for (int64_t k = 0; k < kDepth; k += kLanes) {
        const int count = static_cast<int>(std::clamp<int64_t>(channels - block - k, 0, kLanes));
        Floats x = count > 0 ? load_partial(from + block + k, count) : Floats{};
        if (kScaled && count > 0) x *= load_partial(scale + block + k, count);
        const Parts parts = parts_of(x);
        store_upper(parts.high, to + 2 * k);
        store_upper(parts.middle, to + part + 2 * k);
        store_upper(with_plain_nans(parts.low), to + 2 * part + 2 * k);
      }
    }
  }

  // The upper 16 bits of each lane.
  static void store_upper(Floats x, std::byte* to) noexcept {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[lane]) >> 16);
      std::memcpy(to + 2 * lane, &bits, 2);
    }
  }

  // Sums of products of `rows` positions, up to 32, with steps of a panel: [32, 32]. `a` is the first position of the first
  // grid, whose parts lie `part` bytes apart; step i reads offsets[i] bytes further on.
  static void multiply(const std::byte* a, const int64_t* offsets, int64_t part, int64_t steps, const std::byte* b, int64_t rows,
                       float* sums, bool accumulate, Fetched) noexcept {
    if (!accumulate) std::fill_n(sums, kRows * kColumns, 0.0f);
    const auto value = [part](const std::byte* at) {
      float sum = 0;
      for (int64_t i = kParts - 1; i >= 0; --i) {  // the other way round the largest float32 would overflow
        uint16_t bits;
        std::memcpy(&bits, at + i * part, 2);
        sum += std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      return sum;
    };
    for (int64_t step = 0; step < steps; ++step, b += kStepBytes) {
      const std::byte* const left = a + offsets[step];
      for (int64_t pair = 0; pair < kDepth / 2; ++pair) {
        for (int64_t column = 0; column < kColumns; column += kLanes) {
          const std::byte* const at = b + (column / 16) * (kStepBytes / kParts / 2) + pair * 64 + column % 16 * 4;
          Floats first = {}, second = {};
          for (int64_t i = kParts - 1; i >= 0; --i) {
            const Ints both = load(reinterpret_cast<const int32_t*>(at + i * (kStepBytes / kParts)));
            first += as_floats(both << 16);
            second += as_floats(both & static_cast<int32_t>(0xffff0000));
          }
          for (int64_t row = 0; row < rows; ++row) {
            const std::byte* const x = left + row * kPartBytes + pair * 4;
            float* const sum = sums + row * kColumns + column;
            store(sum, fma(broadcast(value(x)), first, fma(broadcast(value(x + 2)), second, load(sum))));
          }
        }
      }
    }
  }

  struct Unit {};  // nothing to set up
};

#if defined(__AVX512F__)

#define ASPEN_AMX __attribute__((target("amx-tile,amx-bf16,avx512bf16")))
#define ASPEN_AMX_INLINE __attribute__((target("amx-tile,amx-bf16,avx512bf16"), always_inline))

struct ByMatrixUnits {
  template <bool kScaled>
  ASPEN_AMX static void split(const float* from, const float* scale, int64_t channels, std::byte* to, int64_t part) noexcept {
    int64_t k = 0;
    for (; k + kDepth <= channels; k += kDepth, to += kParts * part) {
      Floats first = load(from + k), second = load(from + k + kLanes);
      if constexpr (kScaled) first *= load(scale + k), second *= load(scale + k + kLanes);
      store_parts(first, second, to, part);
    }
    if (const int rest = static_cast<int>(channels - k); rest > 0) {
      const int count = std::min(rest, kLanes);
      Floats first = load_partial(from + k, count), second = {};
      if constexpr (kScaled) first *= load_partial(scale + k, count);
      if (rest > kLanes) {
        second = load_partial(from + k + kLanes, rest - kLanes);
        if constexpr (kScaled) second *= load_partial(scale + k + kLanes, rest - kLanes);
      }
      store_parts(first, second, to, part);
    }
  }

  ASPEN_AMX static ASPEN_INLINE void store_parts(Floats first, Floats second, std::byte* to, int64_t part) {
    const Parts x = parts_of(first), y = parts_of(second);
    const __m512bh high = _mm512_cvtne2ps_pbh(y.high, x.high);
    const __m512bh middle = _mm512_cvtne2ps_pbh(y.middle, x.middle);
    const __m512bh low = _mm512_cvtne2ps_pbh(y.low, x.low);
    std::memcpy(to, &high, sizeof high);
    std::memcpy(to + part, &middle, sizeof middle);
    std::memcpy(to + 2 * part, &low, sizeof low);
  }

  // Registers 0 to 3: sums, of two lots of 16 rows by two of 16 columns; 4 and 5: the rows; 6 and 7: the columns. From each pair
  // of parts to the next only one side is loaded. With one lot of rows the sums are the same, in the same order.
  ASPEN_AMX static void multiply(const std::byte* a, const int64_t* offsets, int64_t part, int64_t steps, const std::byte* b,
                                 int64_t rows, float* sums, bool accumulate, Fetched fetched) noexcept {
    constexpr int64_t kUnitBytes = 16 * kPartBytes, kMiddle = 2 * kUnitBytes, kLow = 4 * kUnitBytes, kSumStride = kColumns * 4;
    const auto columns_of = [](const std::byte* from) ASPEN_AMX_INLINE {
      _tile_loadd(6, from, 64);
      _tile_loadd(7, from + kUnitBytes, 64);
    };
    const auto fetch = [&](int64_t sixth) ASPEN_AMX_INLINE {
      if (sixth < fetched.begin || sixth >= fetched.end) return;
      const std::byte* const from = b + kStepBytes + sixth * (kStepBytes / kSixths);
#pragma GCC unroll 16
      for (int64_t at = 0; at < kStepBytes / kSixths; at += 64) __builtin_prefetch(from + at, 0, 2);
    };
    const auto all_steps = [&](auto rows_of, auto add_products) ASPEN_AMX_INLINE {
      for (int64_t step = 0; step < steps; ++step, b += kStepBytes) {
        const std::byte* const high = a + offsets[step];
        rows_of(high + 2 * part);
        columns_of(b);
        add_products();
        fetch(0);
        rows_of(high + part);
        add_products();
        fetch(1);
        columns_of(b + kMiddle);
        add_products();
        fetch(2);
        rows_of(high);
        add_products();
        fetch(3);
        columns_of(b + kLow);
        add_products();
        fetch(4);
        columns_of(b);
        add_products();
        fetch(5);
      }
    };
    asm volatile("" ::: "memory");
    if (accumulate) {
      _tile_loadd(0, sums, kSumStride);
      _tile_loadd(1, sums + 16, kSumStride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    if (rows > 16) {
      if (accumulate) {
        _tile_loadd(2, sums + 16 * kColumns, kSumStride);
        _tile_loadd(3, sums + 16 * kColumns + 16, kSumStride);
      } else {
        _tile_zero(2);
        _tile_zero(3);
      }
      all_steps(
          [](const std::byte* from) ASPEN_AMX_INLINE {
            _tile_loadd(4, from, 64);
            _tile_loadd(5, from + kUnitBytes, 64);
          },
          []() ASPEN_AMX_INLINE {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
          });
      _tile_stored(2, sums + 16 * kColumns, kSumStride);
      _tile_stored(3, sums + 16 * kColumns + 16, kSumStride);
    } else {
      all_steps([](const std::byte* from) ASPEN_AMX_INLINE { _tile_loadd(4, from, 64); },
                []() ASPEN_AMX_INLINE {
                  _tile_dpbf16ps(0, 4, 6);
                  _tile_dpbf16ps(1, 4, 7);
                });
    }
    _tile_stored(0, sums, kSumStride);
    _tile_stored(1, sums + 16, kSumStride);
    asm volatile("" ::: "memory");
  }

  // All eight registers hold 16 rows of 64 bytes while a tile is computed; the thread's register state is small again after it.
  class Unit {
   public:
    ASPEN_AMX Unit() noexcept {
      struct alignas(64) Shapes {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      };
      static constexpr Shapes kShapes;
      _tile_loadconfig(&kShapes);
    }
    ASPEN_AMX ~Unit() { _tile_release(); }
    Unit(const Unit&) = delete;
    Unit& operator=(const Unit&) = delete;
  };
};

#endif

}  // namespace aspen::cpu::ASPEN_TARGET
