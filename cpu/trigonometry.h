// Trigonometric functions and their inverses on vectors of float32, computed in float64 (see vmath.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "doubles.h"
#include "vec.h"
#include "vmath.h"

namespace aspen::cpu::ASPEN_TARGET {

// sin and cos of r = x - n pi/2, |r| <= pi/4, and n modulo 4. The first part of pi/2 has 33 bits, so that n times it is exact
// for the |x| < 2^20 that this serves.
struct SinCos {
  Doubles sin;
  Doubles cos;
  Longs n;
};
ASPEN_INLINE SinCos sincos_f64(Doubles x) {
  const Doubles shifted = x * 0.63661977236758134 + kShift64;
  const Doubles n = shifted - kShift64;
  const Doubles r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
  const Doubles s = r * r;
  // (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2: 4.9e-12 and 9.6e-11 of the result.
  constexpr double kSin[] = {-0.16666666641607233, 0.008333329383604662, -0.00019839334088387497, 2.718304265747228e-06};
  constexpr double kCos[] = {0.041666646854759695, -0.0013887366917199196, 2.443838022031275e-05};
  const Doubles sin = r * (1.0 + s * polynomial(s, kSin));
  const Doubles cos = 1.0 - 0.5 * s + s * s * polynomial(s, kCos);
  return {sin, cos, shifted_bits(shifted)};
}
inline constexpr float kMaxReduced = 0x1p20f;

// sin(x + quarters * pi / 2).
ASPEN_INLINE Floats sin_shifted(Floats x, int64_t quarters) {
  const Floats result = in_doubles(
      [quarters](Doubles v) {
        const SinCos t = sincos_f64(v);
        const Longs n = t.n + quarters;
        const Doubles magnitude = (n & 1) != 0 ? t.cos : t.sin;
        return reinterpret_cast<Doubles>(reinterpret_cast<Longs>(magnitude) ^ ((n & 2) << 62));
      },
      x);
  const Ints far = ~(abs(x) <= kMaxReduced);
  if (!any(far)) return result;
  return patched(result, far,
                 [&](int i) { return static_cast<float>(quarters == 0 ? std::sin(double{x[i]}) : std::cos(double{x[i]})); });
}
ASPEN_INLINE Floats sin(Floats x) { return sin_shifted(x, 0); }
ASPEN_INLINE Floats cos(Floats x) { return sin_shifted(x, 1); }

ASPEN_INLINE Floats tan(Floats x) {
  const Floats result = in_doubles(
      [](Doubles v) {
        const SinCos t = sincos_f64(v);
        return (t.n & 1) != 0 ? -t.cos / t.sin : t.sin / t.cos;
      },
      x);
  const Ints far = ~(abs(x) <= kMaxReduced);
  if (!any(far)) return result;
  return patched(result, far, [&](int i) { return static_cast<float>(std::tan(double{x[i]})); });
}

// The angle of the point (x, y) above the x axis, in [0, pi]; the sign of y does not count, that of a zero x does.
ASPEN_INLINE Doubles angle_f64(Doubles y, Doubles x) {
  constexpr double kHuge = 1e300;  // stands for infinity, of which there may be two
  const auto magnitude = [](Doubles v) {
    const Doubles a = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(v) & std::numeric_limits<int64_t>::max());
    return a > kHuge ? kHuge - Doubles{} : a;
  };
  const Doubles rise = magnitude(y), run = magnitude(x);
  const Longs steep = rise > run;
  const Doubles longer = steep ? rise : run, shorter = steep ? run : rise;
  const Longs wide = shorter > longer * 0.41421356237309503;  // tan(pi / 8)
  const Doubles t = (wide ? shorter - longer : shorter) / (longer == 0.0 ? 1.0 - Doubles{} : wide ? shorter + longer : longer);
  // (atan(t) / t - 1) / t^2 in t^2 on |t| <= tan(pi / 8): 2.2e-11 relative to atan(t) / t.
  constexpr double kC[] = {-0.33333332514607594, 0.19999905186725464,  -0.14282042069582096,
                           0.11045093468480252,  -0.08478405756821324, 0.04748274312241258};
  constexpr double kPi = 3.141592653589793;
  const Doubles s = t * t;
  Doubles angle = (wide ? kPi / 4 - Doubles{} : Doubles{}) + (t + t * s * polynomial(s, kC));
  angle = steep ? kPi / 2 - angle : angle;
  return reinterpret_cast<Longs>(x) < 0 ? kPi - angle : angle;
}

ASPEN_INLINE Floats atan2(Floats y, Floats x) {
  return with_sign(in_doubles([](Doubles v, Doubles u) { return angle_f64(v, u); }, y, x), sign_bit(y));
}
ASPEN_INLINE Floats atan(Floats x) {
  return with_sign(in_doubles([](Doubles v) { return angle_f64(v, 1.0 - Doubles{}); }, x), sign_bit(x));
}
// The other side of a right triangle of which one side is x and the longest 1.
ASPEN_INLINE Doubles side_f64(Doubles x) { return sqrt_f64((1.0 - x) * (1.0 + x)); }
ASPEN_INLINE Floats asin(Floats x) {
  return with_sign(in_doubles([](Doubles v) { return angle_f64(v, side_f64(v)); }, x), sign_bit(x));
}
ASPEN_INLINE Floats acos(Floats x) {
  return in_doubles([](Doubles v) { return angle_f64(side_f64(v), v); }, x);
}

}  // namespace aspen::cpu::ASPEN_TARGET
