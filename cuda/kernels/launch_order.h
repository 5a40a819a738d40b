// How a kernel begins where CUDA may start it before those that it waits for are over (programmatic dependent launch, compute
// capability 9.0 and later).
//
// The invariant: each thread of each kernel calls `wait_for_parents` before it reads or writes memory. A kernel that is over has
// then seen its parents over, they theirs, and so on. So a launch that waits for its nearest parents sees all that any launch
// before it wrote, and nobody before it reads any more what it writes. Where a module's `aspen_kernels_wait` is not 0, executors
// rely on that.
//
// Before it waits, a kernel may fetch lines of memory into the L2 cache. All multiprocessors read and write through that, so a
// line that is fetched early has what is written later, too. Nothing is read into a register or shared memory so early.
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
// What a thread does that waits, and what becomes of what is fetched, for who plays the driver.
inline void (*played_wait)() = nullptr;
inline void (*played_fetch)(const void* data, int bytes) = nullptr;
#endif

// What a kernel fetches ahead: so many bytes from element 0 of an input on. Its address and they are multiples of 16.
struct Ahead {
  int input, bytes;
};

// By bytes: where only an address is given, less than a line may be fetched.
ASPEN_DEVICE void fetch([[maybe_unused]] const void* data, [[maybe_unused]] int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(data)), "r"(bytes));
#elif !defined(__CUDACC__)
  if (played_fetch != nullptr) played_fetch(data, bytes);
#endif
}

// Thread block number `block` of a launch fetches its share of what Op fetches ahead; a thread so little that it soon waits.
template <class Op>
ASPEN_DEVICE void fetch_ahead(const typename Op::Addresses& buffers, int block) {
  if constexpr (kKernelsWait != 0 && Op::kAhead.bytes > 0) {
    constexpr int kBytes = Op::kAhead.bytes, kOfThread = 256, kOfBlock = Op::kThreads * kOfThread;
    if (block > (kBytes - 1) / kOfBlock) return;
    const auto* const data = static_cast<const char*>(buffers.inputs[Op::kAhead.input]);
    Block<Op::kThreads> threads;
    threads.each_thread([&](int thread) {
      const int first = block * kOfBlock + thread * kOfThread;
      if (first < kBytes) fetch(data + first, kBytes - first < kOfThread ? kBytes - first : kOfThread);
    });
  }
}

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
