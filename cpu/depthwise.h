// What the two ways of a depthwise convolution share (depthwise.cc, sliding.h): both sum up a few neighbouring pixels of a row, a
// few vectors of channels each, in registers.
#pragma once

#include <cstdint>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// Neighbours in a row of the output that are computed together: with two vectors of channels each, their sums hide the latency
// of the adds and leave registers for the filters.
inline constexpr int kPixelGroup = kRegisters >= 32 ? 8 : 6;

// Distances between neighbours, in elements.
struct Steps {
  int64_t x_plane, x_down, x_across, x_pixel;
  int64_t w_plane, w_down, w_across;
  int64_t out_pixel;
};

// Where results go, and which pixel and channel that is for the epilogue's operands.
struct Place {
  float* out;
  int64_t pixel, channel;
};

// The vectors of a pixel. Where kPartial only `lanes` channels of the last one exist.
template <int kVectors, bool kPartial>
struct PixelVectors {
  int lanes;

  // Vector `v`, which lies at `from`.
  ASPEN_INLINE Floats operator()(const float* from, int v) const {
    return kPartial && v == kVectors - 1 ? load_partial(from, lanes) : load(from);
  }

  // Stores the sums of pixels that are `step` apart, and gives the place of the next one.
  template <int kPixels>
  ASPEN_INLINE float* store_all(const Floats (&sum)[kPixels][kVectors], float* out, int64_t step) const {
#pragma GCC unroll 16
    for (int p = 0; p < kPixels; ++p, out += step) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        if (kPartial && v == kVectors - 1) {
          store_partial(out + v * kLanes, sum[p][v], lanes);
        } else {
          store(out + v * kLanes, sum[p][v]);
        }
      }
    }
    return out;
  }
};

// Moves on by so many of the channels that are left. `window` is what is read.
template <class Window>
void advance(Window& window, Place& place, int64_t& channels, int64_t by) {
  window.x += by;
  window.w += by;
  place.out += by;
  place.channel += by;
  channels -= by;
}

}  // namespace aspen::cpu::ASPEN_TARGET
