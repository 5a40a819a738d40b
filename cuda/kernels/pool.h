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

// Windows of a pool, whose elements `read` gives at their coordinates.
template <uint32_t (*kCombine)(uint32_t, uint32_t), PoolShape kShape>
struct Windows {
  template <class Read>
  static ASPEN_DEVICE uint32_t combined(const int* at, const Read& read) {
    uint32_t sum = kShape.start;
    int from[kMostAxes];
    walk<0>(at, read, from, sum);
    return sum;
  }

  // The box of the input that the windows of a box of the output meet.
  static ASPEN_DEVICE void region(const int32_t* box, int32_t* read) {
    constexpr PoolShape shape = kShape;
    ASPEN_UNROLL for (int d = 0; d < shape.rank; ++d) {
      const int base = shape.base[d], size = (shape.extent[d] - 1) / base + 1;
      const int first = box[d] * shape.strides[d] - shape.lo[d];
      const int last = (box[shape.rank + d] - 1) * shape.strides[d] - shape.lo[d] + (shape.window[d] - 1) * shape.dilation[d];
      read[d] = first <= 0 ? 0 : min_of((first + base - 1) / base, size);
      read[shape.rank + d] = last < 0 ? read[d] : max_of(min_of(last / base + 1, size), read[d]);
    }
  }

 private:
  // Goes through the window along axis kAxis and those after it; `from` has the coordinates along those before.
  template <int kAxis, class Read>
  static ASPEN_DEVICE void walk(const int* at, const Read& read, int* from, uint32_t& sum) {
    if constexpr (kAxis == kShape.rank) {
      sum = kCombine(sum, read(static_cast<const int*>(from)));
    } else {
      constexpr int kWindow = kShape.window[kAxis], kStride = kShape.strides[kAxis], kLo = kShape.lo[kAxis];
      constexpr int kDilation = kShape.dilation[kAxis], kBase = kShape.base[kAxis], kExtent = kShape.extent[kAxis];
      for (int w = 0; w < kWindow; ++w) {
        const int place = at[kAxis] * kStride - kLo + w * kDilation;
        if (place < 0 || place >= kExtent || place % kBase != 0) continue;
        from[kAxis] = place / kBase;
        walk<kAxis + 1>(at, read, from, sum);
      }
    }
  }
};

template <class Op, class Input, uint32_t (*kCombine)(uint32_t, uint32_t), PoolShape kShape>
struct Pool : EachElement<Op, Pool<Op, Input, kCombine, kShape>, 1> {
  using Addresses = typename Op::Addresses;

  static ASPEN_DEVICE uint32_t lane(const Addresses& buffers, const int* at) {
    return Windows<kCombine, kShape>::combined(at, [&](const int* from) { return Input::lane(buffers, from); });
  }
};

}  // namespace aspen::cuda
