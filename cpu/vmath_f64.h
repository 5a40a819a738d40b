// Elementary functions on vectors of float32 that are computed in float64 (see vmath.h): powers, hyperbolic functions and their
// inverses, the error function's inverse.
#pragma once

#include <cmath>
#include <cstdint>

#include "doubles.h"
#include "vec.h"
#include "vmath.h"

namespace aspen::cpu::ASPEN_TARGET {

ASPEN_INLINE Floats cbrt(Floats x) {
  const Floats root = in_doubles([](Doubles a) { return exp2_f64(log2_f64(a) * (1.0 / 3.0)); }, abs(x));
  const Ints ordinary = (abs(x) > 0.0f) & (abs(x) < kInfinity);
  return ordinary ? with_sign(root, sign_bit(x)) : x;
}

ASPEN_INLINE Floats pow(Floats x, Floats y) {
  const Floats a = abs(x);
  Floats power = in_doubles([](Doubles base, Doubles exponent) { return exp2_f64(exponent * log2_f64(base)); }, a, y);
  // The logarithm above holds for finite, positive bases only.
  const Ints zero_base = a == 0.0f;
  const Floats limit = (zero_base ^ (y < 0.0f)) ? Floats{} : broadcast(kInfinity);
  power = (zero_base | (a == kInfinity)) ? limit : power;
  power = a == 1.0f ? broadcast(1.0f) : power;
  // Odd powers keep the sign; from 2^24 on every float is even.
  const Ints integral = truncated(y) == y;
  const Ints odd = integral & (abs(y) < 0x1p24f) & ((truncate(y) & 1) != 0);
  power = with_sign(power, sign_bit(x) & odd);
  power = ((x < 0.0f) & (a < kInfinity) & ~integral) ? broadcast(kNaN) : power;
  power = ((x != x) | (y != y)) ? broadcast(kNaN) : power;
  return ((x == 1.0f) | (y == 0.0f)) ? broadcast(1.0f) : power;
}

ASPEN_INLINE Floats sinh(Floats x) {
  return in_doubles(
      [](Doubles v) {
        const Doubles e = exp2_f64(v * 1.4426950408889634), s = v * v;
        // (sinh(x) / x - 1) / x^2 in x^2 on |x| <= 0.5: 9.9e-11 relative to sinh(x) / x.
        constexpr double kC[] = {0.16666667460662576, 0.008333140725607783, 0.00019974027027246726};
        const Longs small = s < 0.25;
        return small ? v + v * s * polynomial(s, kC) : 0.5 * (e - 1.0 / e);
      },
      x);
}
ASPEN_INLINE Floats cosh(Floats x) {
  return in_doubles(
      [](Doubles v) {
        const Doubles e = exp2_f64(v * 1.4426950408889634);
        return 0.5 * (e + 1.0 / e);
      },
      x);
}

ASPEN_INLINE Floats asinh(Floats x) {
  const Floats magnitude = in_doubles(
      [](Doubles a) {
        const Doubles s = a * a;
        return log1p_f64(a + s / (1.0 + sqrt_f64(1.0 + s)));
      },
      abs(x));
  return abs(x) < kInfinity ? with_sign(magnitude, sign_bit(x)) : x;
}
ASPEN_INLINE Floats acosh(Floats x) {
  const Floats result = in_doubles(
      [](Doubles v) {
        const Doubles above = v - 1.0;
        return log1p_f64(above + sqrt_f64(above * (v + 1.0)));
      },
      x);
  return x >= 1.0f ? (x < kInfinity ? result : x) : broadcast(kNaN);
}
ASPEN_INLINE Floats atanh(Floats x) {
  const Floats a = abs(x);
  Floats magnitude = in_doubles([](Doubles v) { return 0.5 * log1p_f64(2.0 * v / (1.0 - v)); }, a);
  magnitude = a == 1.0f ? broadcast(kInfinity) : magnitude;
  return a <= 1.0f ? with_sign(magnitude, sign_bit(x)) : broadcast(kNaN);
}

ASPEN_INLINE Floats erf_inv(Floats x) {
  const Floats result = in_doubles(
      [](Doubles v) {
        const Doubles w = -log_f64((1.0 - v) * (1.0 + v));
        // erf_inv(x) / x in (w - 8) / (w + 8), w = -log(1 - x^2), on 0 <= w <= 16 (the last float32 before 1 has 15.94): 2.2e-9
        // relative.
        constexpr double kC[] = {2.661438635867794,  2.8217165243862796, 1.5275269501503532, 1.239145561203529,
                                 1.372779326007565,  0.8393597022821636, 0.7444277724873275, 1.2323927761386106,
                                 0.8898031378971237, 0.1887748845656403, 0.613942779036316,  1.4671788476328984,
                                 1.3360972865355096, 0.5659184736055619, 0.09469780533807678};
        return v * polynomial((w - 8.0) / (w + 8.0), kC);
      },
      x);
  const Floats a = abs(x);
  return a < 1.0f ? result : a == 1.0f ? with_sign(broadcast(kInfinity), sign_bit(x)) : broadcast(kNaN);
}

// The remainder of the truncated quotient, with the sign of a. Below 2^29 the quotient times b is exact in float64, and so is its
// distance from a.
ASPEN_INLINE Floats rem(Floats a, Floats b) {
  const Floats magnitude = in_doubles(
      [](Doubles x, Doubles y) {
        const Doubles nearest = (x / y + kShift64) - kShift64;
        const Doubles rest = x - nearest * y;
        return rest < 0.0 ? rest + y : rest;
      },
      abs(a), abs(b));
  // Where b is infinite the product above is NaN.
  const Floats result = (abs(a) < kInfinity) & (abs(b) == kInfinity) ? a : with_sign(magnitude, sign_bit(a));
  const Ints far = abs(a) >= 0x1p29f * abs(b);
  if (!any(far)) return result;
  return patched(result, far, [&](int i) { return std::fmod(a[i], b[i]); });
}

}  // namespace aspen::cpu::ASPEN_TARGET
