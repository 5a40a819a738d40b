// float16 and bfloat16 by their definitions, for comparison with the conversions of the kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::testing {

inline bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// The value of 16 bits: sign, exponent, then this many bits of fraction.
inline double half_value(DType dtype, uint16_t bits) {
  const int fraction = dtype == DType::kF16 ? 10 : 7, bias = dtype == DType::kF16 ? 15 : 127;
  const int exponent = (bits & 0x7fff) >> fraction, mantissa = bits & ((1 << fraction) - 1);
  double value = std::ldexp(mantissa, 1 - bias - fraction);
  if (exponent > 0) value = std::ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
  if (exponent == 2 * bias + 1) value = mantissa != 0 ? std::nan("") : INFINITY;
  return (bits & 0x8000) != 0 ? -value : value;
}

// The bits whose value is nearest, the even ones of two that are equally near.
inline uint16_t half_bits(DType dtype, double value) {
  const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity + 1);
  value = std::abs(value);
  // Infinity rounds as if it were the next power of two.
  const auto at = [&](int bits) {
    return bits < infinity ? half_value(dtype, static_cast<uint16_t>(bits)) : dtype == DType::kF16 ? 0x1p16 : 0x1p128;
  };
  int below = 0, above = infinity;  // at(below) <= value
  if (value >= at(above)) return sign | infinity;
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (at(middle) <= value ? below : above) = middle;
  }
  const double down = value - at(below), up = at(above) - value;
  const bool is_up = up < down || (up == down && above % 2 == 0);
  return static_cast<uint16_t>(sign | (is_up ? above : below));
}

// The nearest value that the dtype holds; float32 and others hold all that they are asked for.
inline double rounded(DType dtype, double value) { return is_half(dtype) ? half_value(dtype, half_bits(dtype, value)) : value; }

// Half the distance between the dtype's neighbours around `value`, as far as 16-bit floats go; 0 for others.
inline double rounding_error(DType dtype, double value) {
  if (!is_half(dtype)) return 0;
  return dtype == DType::kF16 ? std::ldexp(std::abs(value), -11) + 0x1p-25 : std::ldexp(std::abs(value), -8);
}

}  // namespace aspen::cpu::testing
