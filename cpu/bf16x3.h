// What the kernels of bf16x3 share: the layout of weights in parts, and how a float32 is parted.
#pragma once

#include <cstdint>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// Part of the graph format (ops/bf16x3.py).
inline constexpr int64_t kStepDepth = 32;    // channels of a step
inline constexpr int64_t kStepColumns = 32;  // of a panel
inline constexpr int64_t kStepBytes = 2 * 2 * kStepColumns * kStepDepth;

inline constexpr float kLargestBf16 = 0x1.FEp127f;

// The high part of x, a bfloat16 as a float32: to the nearest, ties away from zero. What the largest bfloat16 bounds keeps
// infinities out of it: so the low part is an infinity where x is, and a sum of products what it is in float32.
ASPEN_INLINE Floats high_part(Floats x) {
  const Floats bounded = at_most(at_least(x, broadcast(-kLargestBf16)), broadcast(kLargestBf16));
  return as_floats((as_ints(bounded) + 0x8000) & static_cast<int32_t>(0xffff0000));
}

// The low part of what the high one leaves of an x, likewise; a NaN where that is one, whatever its bits.
ASPEN_INLINE Floats low_part(Floats rest) {
  const Ints rounded = (as_ints(rest) + 0x8000) & static_cast<int32_t>(0xffff0000);
  return as_floats(rest == rest ? rounded : broadcast(int32_t{0x7fc00000}));
}

}  // namespace aspen::cpu::ASPEN_TARGET
