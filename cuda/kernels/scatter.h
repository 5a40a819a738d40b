// Scattering: a thread an element, which walks all points for the windows that it is in. Points take effect in their order. A
// tile is any box of the output.
//
// Where the output lies where x does, what no window meets is left as it is. One window alone is then all that threads look at.
#pragma once

#include "elements.h"
#include "indices.h"

namespace aspen::cuda {

// Some axes of the updates choose a point, the others walk its window. Where an axis that chooses points walks x as well, an
// element is met by one point along it; points along the others are tried one after the other.
struct ScatterShape {
  int rank;                // of x
  int walks[kMostAxes];    // for each axis of x the axis of the updates that walks it; -1: none
  bool chosen[kMostAxes];  // of x: whether that axis chooses points
  int sizes[kMostAxes];    // of windows along each axis of x
  int starts[kMostAxes];   // where windows begin that no index places
  int last[kMostAxes];     // where the last window begins that fits
  int num_points;          // axes of the updates that choose points
  int points[kMostAxes];   // their numbers
  int met_by[kMostAxes];   // for each of them the axis of x that it walks; -1: none
  int extents[kMostAxes];  // of each of them
  bool drops;              // windows that do not fit are left out; else they are clamped
  bool may_share;          // the output may lie where x does
};

ASPEN_DEVICE uint32_t replaced(uint32_t, uint32_t update) { return update; }

// Indices: for each axis of x what reads where a window begins, or NoIndex.
template <class Op, class X, class Updates, uint32_t (*kCombine)(uint32_t, uint32_t), ScatterShape kShape, class... Indices>
struct Scatter : Op {
  using Addresses = typename Op::Addresses;
  static constexpr int kThreads = 256, kRank = Op::kRank;
  struct Memory {};

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory&) {
    Block<kThreads> block;
    const bool in_place = kShape.may_share && buffers.inputs[0] == buffers.output;
    int32_t within[2 * kRank + 1];
    ASPEN_UNROLL for (int i = 0; i < 2 * kRank; ++i) within[i] = box[i];
    // Only one window is where it is, whichever element looks for it.
    if constexpr (kShape.num_points == 0 && kRank > 0) {
      if (in_place && !cut<0, Indices...>(buffers, within)) return;
    }
    each_element<kRank>(block, within, [&](const int* at) {
      int place[kMostAxes] = {};  // in the updates
      Met met = {0, false};
      try_points<0>(buffers, at, place, met);
      if (met.is_met || !in_place) Op::finish(buffers, at, met.is_met ? met.value : X::lane(buffers, at));
    });
  }

 private:
  struct Met {
    uint32_t value;
    bool is_met;
  };

  // Lets the points take effect that agree with `place` along axes before number kPoint.
  template <int kPoint>
  static ASPEN_DEVICE void try_points(const Addresses& buffers, const int* at, int* place, Met& met) {
    if constexpr (kPoint == kShape.num_points) {
      constexpr ScatterShape shape = kShape;
      int point[kMostAxes] = {};
      ASPEN_UNROLL for (int i = 0; i < shape.num_points; ++i) point[i] = place[shape.points[i]];
      if constexpr (kRank > 0) {
        if (!find<0, Indices...>(buffers, at, point, place)) return;
      }
      met.value = kCombine(met.is_met ? met.value : X::lane(buffers, at), Updates::lane(buffers, place));
      met.is_met = true;
    } else {
      constexpr int kAxis = kShape.points[kPoint], kMetBy = kShape.met_by[kPoint], kExtent = kShape.extents[kPoint];
      if constexpr (kMetBy >= 0) {
        place[kAxis] = at[kMetBy];
        try_points<kPoint + 1>(buffers, at, place, met);
      } else {
        for (int i = 0; i < kExtent; ++i) {
          place[kAxis] = i;
          try_points<kPoint + 1>(buffers, at, place, met);
        }
      }
    }
  }

  // Where the window of a point begins along an axis of x; false: it is left out.
  template <int kAxis, class Index>
  static ASPEN_DEVICE bool begins(const Addresses& buffers, const int* point, int& begin) {
    constexpr int kStart = kShape.starts[kAxis], kLast = kShape.last[kAxis];
    begin = kStart;
    if constexpr (!kIsSame<Index, NoIndex>) {
      const int64_t index = index_at<Index>(buffers, point);
      if (kShape.drops && (index < 0 || index > kLast)) return false;
      begin = clamped(index, kLast);
    }
    return true;
  }

  // Whether the window of a point has element `at` of x, and where it is in the updates.
  template <int kAxis, class Index, class... Others>
  static ASPEN_DEVICE bool find(const Addresses& buffers, const int* at, const int* point, int* place) {
    if constexpr (!kShape.chosen[kAxis]) {
      constexpr int kWalk = kShape.walks[kAxis], kSize = kShape.sizes[kAxis];
      int begin;
      if (!begins<kAxis, Index>(buffers, point, begin)) return false;
      const int in = at[kAxis] - begin;
      if (in < 0 || in >= kSize) return false;
      if constexpr (kWalk >= 0) place[kWalk] = in;
    }
    if constexpr (sizeof...(Others) > 0) {
      return find<kAxis + 1, Others...>(buffers, at, point, place);
    } else {
      return true;
    }
  }

  // Cuts a box to the only window; false: nothing is left.
  template <int kAxis, class Index, class... Others>
  static ASPEN_DEVICE bool cut(const Addresses& buffers, int32_t* box) {
    constexpr int kSize = kShape.sizes[kAxis];
    int begin;
    if (!begins<kAxis, Index>(buffers, nullptr, begin)) return false;
    box[kAxis] = max_of(box[kAxis], begin);
    box[kRank + kAxis] = min_of(box[kRank + kAxis], begin + kSize);
    if (box[kAxis] >= box[kRank + kAxis]) return false;
    if constexpr (sizeof...(Others) > 0) {
      return cut<kAxis + 1, Others...>(buffers, box);
    } else {
      return true;
    }
  }
};

}  // namespace aspen::cuda
