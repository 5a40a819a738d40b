// Threads that work on a row together: neighbouring lanes of one or several warps, who combine what each has found.
#pragma once

#include <cstdint>

#include "block.h"

namespace aspen::cuda {

// kLanes neighbours in each of kWarps warps walk a row: walker w takes elements w, w + kWalkers, ... Where neighbouring elements
// are adjacent in memory, many lanes make reads coalesce; where neighbouring rows are, one lane does.
template <int kThreads_, int kLanes, int kWarps>
struct Team {
  static constexpr int kThreads = kThreads_;
  static constexpr int kWalkers = kLanes * kWarps;
  static constexpr int kRows = kThreads / kWalkers;  // at once
  static constexpr int kRowsOfWarp = kWarp / kLanes;
  static_assert(kThreads % (kWarp * kWarps) == 0 && kWarp % kLanes == 0);

  template <class T>
  struct Memory {
    T found[kWarps > 1 ? kThreads / kLanes : 1];
  };

  static ASPEN_DEVICE int row(int thread) { return thread / kWarp / kWarps * kRowsOfWarp + thread % kWarp / kLanes; }
  static ASPEN_DEVICE int walker(int thread) { return thread / kWarp % kWarps * kLanes + thread % kLanes; }

  // Every thread's `own` becomes that of all walkers of its row, combined. All threads of the block must come here.
  template <class T, class Combine>
  static ASPEN_DEVICE void reduce(Block<kThreads>& block, Memory<T>& memory, PerThread<T, kThreads>& own,
                                  const Combine& combine) {
    ASPEN_UNROLL for (int step = 1; step < kLanes; step *= 2) {
      block.exchange(own, step, [&](const T& mine, const T& other) { return combine(mine, other); });
    }
    if constexpr (kWarps > 1) {
      block.sync();  // the last result has been read
      block.each_thread([&](int thread) {
        if (thread % kLanes == 0) memory.found[thread / kLanes] = own[thread];
      });
      block.sync();
      block.each_thread([&](int thread) {
        const int first = thread / kWarp / kWarps * kWarps * kRowsOfWarp + thread % kWarp / kLanes;
        T all = memory.found[first];
        ASPEN_UNROLL for (int warp = 1; warp < kWarps; ++warp) all = combine(all, memory.found[first + warp * kRowsOfWarp]);
        own[thread] = all;
      });
    }
  }
};

}  // namespace aspen::cuda
