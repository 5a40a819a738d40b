// Vectors of float64, two for each vector of float32: there range reduction and cancellation need no care. The polynomials were
// fitted as those of vmath.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vec.h"
#include "vmath.h"

namespace aspen::cpu::ASPEN_TARGET {

typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef int64_t Longs __attribute__((vector_size(kVectorBytes)));
typedef uint64_t UnsignedLongs __attribute__((vector_size(kVectorBytes)));

template <class Function>
ASPEN_INLINE Floats in_doubles(Function function, auto... x) {
  const auto half = [](Floats v, int index) {
    HalfFloats h;
    std::memcpy(&h, reinterpret_cast<const char*>(&v) + index * sizeof h, sizeof h);
    return __builtin_convertvector(h, Doubles);
  };
  Floats y;
  for (int index = 0; index < 2; ++index) {
    const HalfFloats h = __builtin_convertvector(function(half(x, index)...), HalfFloats);
    std::memcpy(reinterpret_cast<char*>(&y) + index * sizeof h, &h, sizeof h);
  }
  return y;
}

inline constexpr double kShift64 = 0x1.8p52;  // the sum with it rounds to an integer and leaves that in the low bits
ASPEN_INLINE Longs shifted_bits(Doubles shifted) {
  return reinterpret_cast<Longs>(reinterpret_cast<UnsignedLongs>(shifted) - uint64_t{0x4338000000000000});
}

// 2^x; above 200 it is 2^200 and below -200 it is 2^-200, both out of float32's range.
ASPEN_INLINE Doubles exp2_f64(Doubles x) {
  x = x > 200.0 ? 200.0 - Doubles{} : x;
  x = x < -200.0 ? -200.0 - Doubles{} : x;
  const Doubles shifted = x + kShift64;
  const Doubles r = x - (shifted - kShift64);
  // Error on |r| <= 0.5: 4.1e-11 relative.
  constexpr double kC[] = {0.9999999999610697,   0.6931471807311455,    0.24022651204168552,   0.05550410347280915,
                           0.009618026440978396, 0.0013333925476306237, 0.0001546955345084427, 1.5201720570428646e-05};
  return polynomial(r, kC) * reinterpret_cast<Doubles>((shifted_bits(shifted) + 1023) << 52);
}

// log2 of a positive, finite, normal number; every positive finite float32 is normal in float64.
ASPEN_INLINE Doubles log2_f64(Doubles x) {
  const UnsignedLongs bits = reinterpret_cast<UnsignedLongs>(x);                       // of other numbers the differences wrap
  const Longs e = reinterpret_cast<Longs>(bits - uint64_t{0x3fe6a09e667f3bcd}) >> 52;  // so that m is in [sqrt(1/2), sqrt(2))
  const Doubles m = reinterpret_cast<Doubles>(bits - (reinterpret_cast<UnsignedLongs>(e) << 52));
  const Doubles s = (m - 1.0) / (m + 1.0);
  // log2((1 + s) / (1 - s)) / s in s^2 on |s| <= 0.172: 2.7e-14 relative.
  constexpr double kC[] = {2.8853900817778486, 0.9617966941158762, 0.5770779415926364,
                           0.4122093337795279, 0.3199022282961509, 0.2829514754778905};
  return __builtin_convertvector(e, Doubles) + s * polynomial(s * s, kC);
}

ASPEN_INLINE Doubles log_f64(Doubles x) { return log2_f64(x) * 0.6931471805599453; }

// log(1 + x) for x > -1: the last term is what rounding 1 + x has lost.
ASPEN_INLINE Doubles log1p_f64(Doubles x) {
  const Doubles u = 1.0 + x;
  return log_f64(u) - ((u - 1.0) - x) / u;
}

ASPEN_INLINE Doubles sqrt_f64(Doubles x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_pd(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(x);
#else
  Doubles y;
  for (int i = 0; i < kLanes / 2; ++i) y[i] = std::sqrt(x[i]);
  return y;
#endif
}

// Applies a scalar function where `lanes` is set.
template <class Function>
ASPEN_INLINE Floats patched(Floats result, Ints lanes, Function function) {
  for (int i = 0; i < kLanes; ++i) {
    if (lanes[i] != 0) result[i] = function(i);
  }
  return result;
}

}  // namespace aspen::cpu::ASPEN_TARGET
