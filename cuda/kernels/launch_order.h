// How a kernel begins where CUDA may start it before those that it waits for are over (programmatic dependent launch, compute
// capability 9.0 and later).
//
// The invariant: each thread of each kernel calls `wait_for_parents` before all else. A kernel that is over has then seen its
// parents over, they theirs, and so on. So a launch that waits for its nearest parents sees all that any launch before it wrote,
// and nobody before it reads any more what it writes. Where a module's `aspen_kernels_wait` is not 0, executors rely on that.
//
// A kernel lets those behind it start after its own wait. So when a launch starts, all that it comes after is over but its
// nearest parents, and one generation at most waits on the device. It takes no place from those parents: all their thread blocks
// run by then.
#pragma once

#include <cstdint>

#include "block.h"

namespace aspen::cuda {

#if defined(__CUDA_ARCH__) ? __CUDA_ARCH__ >= 900 : defined(ASPEN_PLAY_WARPGROUPS)
inline constexpr int32_t kKernelsWait = 1;
#else
inline constexpr int32_t kKernelsWait = 0;
#endif

#ifndef __CUDACC__
// What a thread does that waits, for who plays the driver.
inline void (*played_wait)() = nullptr;
#endif

// Waits until all launches before this one in a graph are over, and what they wrote can be read; then lets those behind it start.
ASPEN_DEVICE void wait_for_parents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#elif !defined(__CUDACC__)
  if (kKernelsWait != 0 && played_wait != nullptr) played_wait();
#endif
}

}  // namespace aspen::cuda
