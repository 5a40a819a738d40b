// Pooling: a thread walks the window of its element. A tile is any box of the output; neighbouring threads take neighbours along
// the last axis, so that their reads are adjacent. Windows overlap, and what they share comes from the cache.
#pragma once

#include "elements.h"

namespace aspen::cuda {

// The window of element `at` begins at at * strides - lo and has `window` elements, `dilation` apart. Between neighbours of the
// input lie base - 1 places without an element; `extent` counts them too.
struct PoolShape {
  int rank;
  int window[kMostAxes], strides[kMostAxes], lo[kMostAxes], dilation[kMostAxes];
  int base[kMostAxes], extent[kMostAxes];
  uint32_t start;  // the lane of nothing
};

template <class Op, class Input, uint32_t (*kCombine)(uint32_t, uint32_t), PoolShape kShape>
struct Pool : EachElement<Op, Pool<Op, Input, kCombine, kShape>, 1> {
  using Addresses = typename Op::Addresses;

  static ASPEN_DEVICE uint32_t lane(const Addresses& buffers, const int* at) {
    uint32_t sum = kShape.start;
    int from[kMostAxes];
    walk<0>(buffers, at, from, sum);
    return sum;
  }

 private:
  // Goes through the window along axis kAxis and those after it; `from` has the coordinates along those before.
  template <int kAxis>
  static ASPEN_DEVICE void walk(const Addresses& buffers, const int* at, int* from, uint32_t& sum) {
    if constexpr (kAxis == kShape.rank) {
      sum = kCombine(sum, Input::lane(buffers, from));
    } else {
      constexpr int kWindow = kShape.window[kAxis], kStride = kShape.strides[kAxis], kLo = kShape.lo[kAxis];
      constexpr int kDilation = kShape.dilation[kAxis], kBase = kShape.base[kAxis], kExtent = kShape.extent[kAxis];
      for (int w = 0; w < kWindow; ++w) {
        const int place = at[kAxis] * kStride - kLo + w * kDilation;
        if (place < 0 || place >= kExtent || place % kBase != 0) continue;
        from[kAxis] = place / kBase;
        walk<kAxis + 1>(buffers, at, from, sum);
      }
    }
  }
};

}  // namespace aspen::cuda
