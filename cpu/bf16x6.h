// What the kernels of bf16x6 share: the layout of weights in parts, and how a float32 is parted.
#pragma once

#include <cstdint>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// Part of the graph format (ops/bf16x6.py).
inline constexpr int64_t kParts = 3;
inline constexpr int64_t kStepDepth = 32;    // channels of a step
inline constexpr int64_t kStepColumns = 32;  // of a panel
inline constexpr int64_t kStepBytes = kParts * 2 * kStepColumns * kStepDepth;

inline constexpr float kLargestBf16 = 0x1.FEp127f;

// The leading part of x, a bfloat16 as a float32: to the nearest, ties away from zero. What the largest bfloat16 bounds keeps
// infinities out of it: so the last part is an infinity where x is, and a sum of products what it is in float32.
ASPEN_INLINE Floats leading_part(Floats x) {
  const Floats bounded = at_most(at_least(x, broadcast(-kLargestBf16)), broadcast(kLargestBf16));
  return as_floats((as_ints(bounded) + 0x8000) & static_cast<int32_t>(0xffff0000));
}

struct Parts {
  Floats high, middle, low;
};

// x as three bfloat16 in float32, which add up to it but for subnormal numbers; of a NaN the low part is one.
ASPEN_INLINE Parts parts_of(Floats x) {
  Parts parts;
  parts.high = leading_part(x);
  const Floats rest = x - parts.high;
  parts.middle = leading_part(rest);
  parts.low = rest - parts.middle;
  return parts;
}

// The upper 16 bits of a part are the bfloat16; a NaN might have none of its bits there.
ASPEN_INLINE Floats with_plain_nans(Floats x) { return as_floats(x == x ? as_ints(x) : broadcast(int32_t{0x7fc00000})); }

}  // namespace aspen::cpu::ASPEN_TARGET
