// Depthwise convolution by windows that slide along a row: of 3, 5 or 7 adjacent taps across, 1 or 2 apart, they overlap. Where
// the registers hold a row of the filter beside the sums, what a group of neighbours reads of a row of x is loaded once for all
// of them; else each multiply-add needs a load of its own, which takes as long.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "conv2d.h"
#include "depthwise.h"
#include "finish.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

inline constexpr bool kHoldsFilter = kRegisters >= 32;
inline constexpr int kLeastPixels = 4;  // of a group, to be worth it

// A row of windows.
struct Line {
  const float* x;  // row of x, where it would have the first window's first column
  const float* w;
  int64_t depth, taps_down;
  int64_t left, width;  // that column, and how many there are in x
};

template <int kPixels, int kVectors, int kTaps, int kStride, bool kPartial>
void sliding_micro(const Steps& steps, const Line& line, const Finish& finish, int64_t groups, int lanes,
                   const Place& place) noexcept {
  constexpr int kColumns = (kPixels - 1) * kStride + kTaps;
  const PixelVectors<kVectors, kPartial> get{lanes};
  const float* corner = line.x;
  int64_t left = line.left;
  float* out = place.out;
  for (int64_t group = 0; group < groups; ++group, corner += kPixels * steps.x_pixel, left += kPixels * kStride) {
    // Which of the columns exist.
    const auto first = static_cast<unsigned>(std::clamp<int64_t>(-left, 0, kColumns));
    const auto last = static_cast<unsigned>(std::clamp<int64_t>(line.width - left, first, kColumns));
    const unsigned present = (1u << last) - (1u << first);
    Floats sum[kPixels][kVectors];
    const int begun = begin_in_registers(&finish, place.channel, sum, get);
    for (int64_t k = 0; k < line.depth; ++k) {
      const float* x_row = corner + k * steps.x_plane;
      const float* w_row = line.w + k * steps.w_plane;
      for (int64_t down = 0; down < line.taps_down; ++down, x_row += steps.x_down, w_row += steps.w_down) {
        Floats filter[kTaps][kVectors];
#pragma GCC unroll 16
        for (int t = 0; t < kTaps; ++t) {
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) filter[t][v] = get(w_row + t * steps.w_across + v * kLanes, v);
        }
        [&]<int... kColumn>(std::integer_sequence<int, kColumn...>) __attribute__((always_inline)) {
          const float* x = x_row;
          const auto add = [&]<int kAt>(std::integral_constant<int, kAt>) __attribute__((always_inline)) {
            if ((present >> kAt & 1u) != 0) {
#pragma GCC unroll 16
              for (int v = 0; v < kVectors; ++v) {
                const Floats value = get(x + v * kLanes, v);
#pragma GCC unroll 16
                for (int t = 0; t < kTaps; ++t) {
                  const int from_first = kAt - t;
                  if (from_first < 0 || from_first % kStride != 0 || from_first / kStride >= kPixels) continue;
                  Floats& s = sum[from_first / kStride][v];
                  s = fma(value, filter[t][v], s);
                }
              }
            }
            x += steps.x_across;
          };
          (add(std::integral_constant<int, kColumn>()), ...);
        }(std::make_integer_sequence<int, kColumns>());
      }
    }
    finish_in_registers(finish, begun, place.pixel + group * kPixels, place.channel, sum, get);
    out = get.store_all(sum, out, steps.out_pixel);
  }
}

template <int kPixels, int kTaps, int kStride>
void sliding_channels(const Steps& steps, Line line, const Finish& finish, int64_t groups, int64_t channels,
                      Place place) noexcept {
  // The filter, the sums and what is loaded share the registers.
  constexpr int kVectors = 2 * (kTaps + kPixelGroup + 1) <= kRegisters ? 2 : 1;
  constexpr int64_t kStep = kVectors * kLanes;
  for (; channels >= kStep; advance(line, place, channels, kStep)) {
    sliding_micro<kPixels, kVectors, kTaps, kStride, false>(steps, line, finish, groups, 0, place);
  }
  for (; channels > 0; advance(line, place, channels, kLanes)) {
    const int lanes = static_cast<int>(std::min<int64_t>(channels, kLanes));
    sliding_micro<kPixels, 1, kTaps, kStride, true>(steps, line, finish, groups, lanes, place);
  }
}

using SlidingChannels = void (*)(const Steps&, Line, const Finish&, int64_t groups, int64_t channels, Place) noexcept;
using SlidingByPixels = std::array<SlidingChannels, kPixelGroup - kLeastPixels + 1>;

template <int kTaps, int kStride>
constexpr auto kSliding = []<int... kPixel>(std::integer_sequence<int, kPixel...>) {
  return SlidingByPixels{sliding_channels<kLeastPixels + kPixel, kTaps, kStride>...};
}(std::make_integer_sequence<int, kPixelGroup - kLeastPixels + 1>());

// The kernels for these windows; null where there are none.
inline const SlidingByPixels* sliding_for([[maybe_unused]] const ConvShape& s) {
  if constexpr (kHoldsFilter) {
    if (s.dilation[1] != 1 || s.stride[1] > 2) return nullptr;
    switch (s.kernel[1]) {
      case 3:
        return s.stride[1] == 1 ? &kSliding<3, 1> : &kSliding<3, 2>;
      case 5:
        return s.stride[1] == 1 ? &kSliding<5, 1> : &kSliding<5, 2>;
      case 7:
        return s.stride[1] == 1 ? &kSliding<7, 1> : &kSliding<7, 2>;
      default:
        return nullptr;
    }
  }
  return nullptr;
}

}  // namespace aspen::cpu::ASPEN_TARGET
