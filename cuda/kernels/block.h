// A thread block as kernels see it, on the device and on the host.
//
// Kernels are written as phases that all threads (or warps) go through, with `sync` between them, and keep what a thread or a
// warp holds from one phase to the next in PerThread or PerWarp. Compiled by nvcc, a phase is what the calling thread does.
// Compiled by a C++ compiler, one thread of the host does it for each in turn, and the instructions of a warp are spelt out: so
// kernels run, and are tested, where there is no GPU. The host is stricter than the device: where an asynchronous copy goes,
// there are NaN from its beginning until it has been waited for, and what a block shares begins as NaN.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ASPEN_DEVICE __device__ __forceinline__
#define ASPEN_UNROLL _Pragma("unroll")
#define ASPEN_UNROLL_4 _Pragma("unroll 4")
#define ASPEN_PRAGMA(text) _Pragma(#text)
#define ASPEN_UNROLL_BY(count) ASPEN_PRAGMA(unroll(count))
#else
#include <functional>
#include <utility>
#include <vector>
#define ASPEN_DEVICE inline
#define ASPEN_UNROLL
#define ASPEN_UNROLL_4
#define ASPEN_UNROLL_BY(count)
#endif

namespace aspen::cuda {

inline constexpr int kWarp = 32, kWarpgroup = 128;

// As in the standard library, which NVRTC does not bring.
template <class A, class B>
inline constexpr bool kIsSame = false;
template <class A>
inline constexpr bool kIsSame<A, A> = true;
template <bool kFirst, class A, class B>
struct Either {
  using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using Type = B;
};

// What each thread, or each warp, of a block holds.
template <class T, int kCount>
struct PerThread {
#ifdef __CUDACC__
  T own;
  ASPEN_DEVICE T& operator[](int) { return own; }
#else
  std::vector<T> all = std::vector<T>(kCount);
  T& operator[](int thread) { return all[static_cast<size_t>(thread)]; }
#endif
};
template <class T, int kCount>
using PerWarp = PerThread<T, kCount>;

// 32-bit registers of each lane of a warp.
template <int kCount>
struct Fragment {
#ifdef __CUDACC__
  uint32_t own[kCount];
  ASPEN_DEVICE uint32_t& of(int, int i) { return own[i]; }  // that of a lane, on the device of the calling one
  template <class Visit>
  ASPEN_DEVICE void each(const Visit& visit) {
    ASPEN_UNROLL for (int i = 0; i < kCount; ++i) visit(static_cast<int>(threadIdx.x) % kWarp, i, own[i]);
  }
#else
  uint32_t all[kWarp][kCount] = {};
  uint32_t& of(int lane, int i) { return all[lane][i]; }
  template <class Visit>
  void each(const Visit& visit) {
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < kCount; ++i) visit(lane, i, all[lane][i]);
    }
  }
#endif
};

ASPEN_DEVICE float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
ASPEN_DEVICE uint32_t as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// float16 and back, to the nearest, ties to even.
ASPEN_DEVICE float widened_f16(uint16_t bits) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Moved to float32's place the exponent is too small by 112; the product with a power of two also makes subnormals right.
  return as_float(sign | as_bits(as_float(magnitude << 13) * 0x1p112f));
#endif
}
ASPEN_DEVICE uint16_t narrowed_f16(float value) {
#ifdef __CUDACC__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Below 2^-14 neighbours are 2^-24 apart, the last place of 0.5.
    return static_cast<uint16_t>(sign | (as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
#endif
}

// Two bfloat16 in a register, by one instruction, to the nearest, ties to even; of NaN there is one. The first is the lower half.
ASPEN_DEVICE uint32_t narrowed_bf16x2(float first, float second) {
#ifdef __CUDACC__
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  const auto narrowed = [](float value) {
    const uint32_t bits = as_bits(value);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return narrowed(first) | narrowed(second) << 16;
#endif
}
// The instruction for one is of a slower unit.
ASPEN_DEVICE uint16_t narrowed_bf16(float value) { return static_cast<uint16_t>(narrowed_bf16x2(value, 0.0f)); }
// As the float32 that it is.
ASPEN_DEVICE float rounded_to_bf16(float value) { return as_float(narrowed_bf16x2(0.0f, value)); }

ASPEN_DEVICE uint32_t narrowed_f16x2(float first, float second) {
#ifdef __CUDACC__
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  return narrowed_f16(first) | static_cast<uint32_t>(narrowed_f16(second)) << 16;
#endif
}

template <int kThreads>
class Block {
 public:
#ifdef __CUDACC__
  template <class Phase>
  ASPEN_DEVICE void each_thread(const Phase& phase) {
    phase(static_cast<int>(threadIdx.x));
  }
  template <class Phase>
  ASPEN_DEVICE void each_warp(const Phase& phase) {
    phase(static_cast<int>(threadIdx.x) / kWarp);
  }
  template <class Phase>
  ASPEN_DEVICE void each_warpgroup(const Phase& phase) {
    // The exchange tells the compiler that a warp has but one.
    phase(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0));
  }
  // The four warps of a warpgroup, within its phase.
  template <class Phase>
  ASPEN_DEVICE void each_warp_of_group(const Phase& phase) {
    phase(static_cast<int>(threadIdx.x) % kWarpgroup / kWarp);
  }
  ASPEN_DEVICE void sync() { __syncthreads(); }
  // The lanes of each warp alone: what one wrote into shared memory before, the others see after it.
  ASPEN_DEVICE void sync_warps() { __syncwarp(); }

  // Each lane of a warp gets combine(its own, that of the lane whose number differs in the bit `step`). T is made of 32-bit
  // words.
  template <class T, class Combine>
  ASPEN_DEVICE void exchange(PerThread<T, kThreads>& values, int step, const Combine& combine) {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0);
    uint32_t words[sizeof(T) / sizeof(uint32_t)];
    memcpy(words, &values.own, sizeof(T));
    ASPEN_UNROLL for (uint32_t& word : words) word = __shfl_xor_sync(0xffffffffu, word, step);
    T other;
    memcpy(&other, words, sizeof(T));
    values.own = combine(values.own, other);
  }

  // Begins a copy of 2, 4, 8 or 16 bytes, aligned to as many, into shared memory; of zeros instead if not `reads`. `from` must
  // point into global memory all the same. There is no instruction for 2 bytes: these are there at once.
  template <int kBytes>
  ASPEN_DEVICE void copy_async(void* to, const void* from, bool reads) {
    copy_part_async<kBytes>(to, from, reads ? kBytes : 0);
  }
  // The same of the first `bytes` of them, and of zeros behind.
  template <int kBytes>
  ASPEN_DEVICE void copy_part_async(void* to, const void* from, int bytes) {
    [[maybe_unused]] const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 2) {
      *static_cast<uint16_t*>(to) = bytes > 0 ? *static_cast<const uint16_t*>(from) : uint16_t{0};
    } else if constexpr (kBytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes) : "memory");
    }
  }
  // Ends a group of copies; `wait<n>` waits for all groups but the last n. Both are for all threads, outside of phases.
  ASPEN_DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int kLeft>
  ASPEN_DEVICE void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  }
  // What the calling threads wrote into shared memory, and copies that they waited for: after the next sync, instructions that
  // read by the asynchronous proxy (warpgroup_mma.h) see it.
  ASPEN_DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#else
  template <class Phase>
  void each_thread(const Phase& phase) {
    for (int thread = 0; thread < kThreads; ++thread) phase(thread);
  }
  template <class Phase>
  void each_warp(const Phase& phase) {
    for (int warp = 0; warp < kThreads / kWarp; ++warp) phase(warp);
  }
  template <class Phase>
  void each_warpgroup(const Phase& phase) {
    for (int group = 0; group < kThreads / kWarpgroup; ++group) phase(group);
  }
  template <class Phase>
  void each_warp_of_group(const Phase& phase) {
    for (int warp = 0; warp < kWarpgroup / kWarp; ++warp) phase(warp);
  }
  void sync_warps() {}
  void sync() {
    if (copied_ == Copied::kPublished) copied_ = Copied::kSynced;
  }

  template <class T, class Combine>
  void exchange(PerThread<T, kThreads>& values, int step, const Combine& combine) {
    const std::vector<T> before = values.all;
    for (int thread = 0; thread < kThreads; ++thread) values[thread] = combine(before[thread], before[thread ^ step]);
  }

  template <int kBytes>
  void copy_async(void* to, const void* from, bool reads) {
    copy_part_async<kBytes>(to, from, reads ? kBytes : 0);
  }
  template <int kBytes>
  void copy_part_async(void* to, const void* from, int bytes) {
    if (reinterpret_cast<uintptr_t>(to) % kBytes != 0 || reinterpret_cast<uintptr_t>(from) % kBytes != 0) __builtin_trap();
    if (bytes < 0 || bytes > kBytes) __builtin_trap();
    std::memset(to, 0xff, kBytes);
    open_.push_back({to, from, kBytes, static_cast<size_t>(bytes)});
  }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  template <int kLeft>
  void wait() {
    while (groups_.size() > kLeft) {
      if (!groups_.front().empty()) copied_ = Copied::kArrived;
      for (const Copy& copy : groups_.front()) {
        std::memset(copy.to, 0, copy.bytes);
        std::memcpy(copy.to, copy.from, copy.read);
      }
      groups_.erase(groups_.begin());
    }
  }
  void publish() {
    if (copied_ == Copied::kArrived) copied_ = Copied::kPublished;
  }
  bool is_published() const { return copied_ == Copied::kSynced; }
  void written() { copied_ = Copied::kArrived; }  // by threads, for the asynchronous proxy

 private:
  enum class Copied { kArrived, kPublished, kSynced };
  struct Copy {
    void* to;
    const void* from;
    size_t bytes, read;
  };
  using Group = std::vector<Copy>;
  Group open_;
  std::vector<Group> groups_;
  Copied copied_ = Copied::kSynced;
#endif
};

}  // namespace aspen::cuda
