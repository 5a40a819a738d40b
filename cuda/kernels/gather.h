// Gathering: each element finds its window; a run of adjacent ones finds it once, where windows run along the last axis. A tile
// is any box of the output. Windows are clamped before anything is read, so that no thread needs to wait for a comparison.
#pragma once

#include "elements.h"
#include "indices.h"

namespace aspen::cuda {

// The element of x along an axis is the beginning of the window, plus the output's coordinate along `walks`; -1: there is none.
struct GatherShape {
  int rank, num_index_axes;
  int walks[kMostAxes];
  int last[kMostAxes];        // where the last window that fits begins
  int index_axes[kMostAxes];  // of the output: those that choose a window
  bool fills;                 // windows that do not fit are `fill`; else they are clamped
  uint32_t fill;              // a lane
  int run;                    // adjacent elements at once
};

// Indices: for each axis of x what reads where its window begins, or NoIndex.
template <class Op, class X, GatherShape kShape, class... Indices>
struct Gather : EachElement<Op, Gather<Op, X, kShape, Indices...>, kShape.run> {
  using Addresses = typename Op::Addresses;

  static ASPEN_DEVICE uint32_t lane(const Addresses& buffers, const int* at) {
    int from[kMostAxes];
    return find(buffers, at, from) ? X::lane(buffers, from) : kShape.fill;
  }

  struct FilledRun {
    Run<typename X::Stored, kShape.run> read;
    bool inside;
    ASPEN_DEVICE uint32_t lane(int i) const { return !kShape.fills || inside ? read.lane(i) : kShape.fill; }
  };
  static ASPEN_DEVICE FilledRun run(const Addresses& buffers, const int* at) {
    int from[kMostAxes];
    const bool inside = find(buffers, at, from);
    return {{load_vector<kShape.run>(X::address(buffers, from))}, inside};
  }

 private:
  // Whether the window of `at` fits, and where its element is in x, clamped if it does not.
  static ASPEN_DEVICE bool find(const Addresses& buffers, const int* at, int* from) {
    constexpr GatherShape shape = kShape;
    int point[kMostAxes];
    ASPEN_UNROLL for (int i = 0; i < shape.num_index_axes; ++i) point[i] = at[shape.index_axes[i]];
    bool inside = true;
    if constexpr (shape.rank > 0) find_along<0, Indices...>(buffers, at, point, from, inside);
    return inside;
  }
  template <int kAxis, class Index, class... Others>
  static ASPEN_DEVICE void find_along(const Addresses& buffers, const int* at, const int* point, int* from, bool& inside) {
    constexpr int kWalk = kShape.walks[kAxis], kLast = kShape.last[kAxis];
    from[kAxis] = 0;
    if constexpr (!kIsSame<Index, NoIndex>) {
      const int64_t index = index_at<Index>(buffers, point);
      if (kShape.fills && (index < 0 || index > kLast)) inside = false;
      from[kAxis] = clamped(index, kLast);
    }
    if constexpr (kWalk >= 0) from[kAxis] += at[kWalk];
    if constexpr (sizeof...(Others) > 0) find_along<kAxis + 1, Others...>(buffers, at, point, from, inside);
  }
};

}  // namespace aspen::cuda
