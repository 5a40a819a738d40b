// float16 and bfloat16 by their definitions, for comparison with the conversions of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

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

// The values of all bits from 0 to those of infinity, which counts as the next power of two, as in rounding.
inline const std::vector<double>& half_values(DType dtype) {
  static const auto all = [](DType of) {
    std::vector<double> values;
    for (int bits = 0; bits < (of == DType::kF16 ? 0x7c00 : 0x7f80); ++bits)
      values.push_back(half_value(of, static_cast<uint16_t>(bits)));
    values.push_back(of == DType::kF16 ? 0x1p16 : 0x1p128);
    return values;
  };
  static const std::vector<double> f16 = all(DType::kF16), bf16 = all(DType::kBF16);
  return dtype == DType::kF16 ? f16 : bf16;
}

// The bits whose value is nearest, the even ones of two that are equally near.
inline uint16_t half_bits(DType dtype, double value) {
  const std::vector<double>& values = half_values(dtype);
  const auto infinity = static_cast<int>(values.size()) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity + 1);
  value = std::abs(value);
  if (value >= values.back()) return static_cast<uint16_t>(sign | infinity);
  const auto above = std::upper_bound(values.begin(), values.end(), value);
  const double down = value - above[-1], up = *above - value;
  const auto bits = static_cast<int>(above - values.begin());
  const bool is_up = up < down || (up == down && bits % 2 == 0);
  return static_cast<uint16_t>(sign | (is_up ? bits : bits - 1));
}

// The nearest value that the dtype holds; float32 and others hold all that they are asked for.
inline double rounded(DType dtype, double value) { return is_half(dtype) ? half_value(dtype, half_bits(dtype, value)) : value; }

// Half the distance between the dtype's neighbours around `value`, as far as 16-bit floats go; 0 for others.
inline double rounding_error(DType dtype, double value) {
  if (!is_half(dtype)) return 0;
  return dtype == DType::kF16 ? std::ldexp(std::abs(value), -11) + 0x1p-25 : std::ldexp(std::abs(value), -8);
}

}  // namespace aspen::cpu::testing
