// Elementary functions on vectors of float32, with the special values of IEEE 754 and jax.lax.
//
// The polynomials are minimax fits, computed for this file with the Remez algorithm in 40-digit arithmetic, then rounded; each
// gives its interval and its largest error before rounding. Functions that neural networks call all the time are computed in
// float32; the others in float64 (two half vectors), where range reduction and cancellation need no care.
// tests/cpp/block_test.cc states and holds the error of each in ulp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr int32_t kSignBit = std::numeric_limits<int32_t>::min();

ASPEN_INLINE Ints sign_bit(Floats x) { return as_ints(x) & kSignBit; }
ASPEN_INLINE Floats abs(Floats x) { return as_floats(as_ints(x) & ~kSignBit); }
// The difference of two bit patterns, modulo 2^32: lanes that are patched later may hold any bits.
ASPEN_INLINE Ints minus(Ints a, Ints b) {
  return reinterpret_cast<Ints>(reinterpret_cast<Uints>(a) - reinterpret_cast<Uints>(b));
}
ASPEN_INLINE Floats with_sign(Floats magnitude, Ints sign) { return as_floats(as_ints(magnitude) | sign); }

// c[0] + c[1] x + c[2] x^2 + ...
template <class V, class T, int N>
ASPEN_INLINE V polynomial(V x, const T (&c)[N]) {
  V sum = c[N - 1] - V{};
  for (int i = N - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

// Rounding. From 2^23 on a float is an integer; NaN fails the comparison and stays.
ASPEN_INLINE Floats truncated(Floats x) {
  const Floats t = with_sign(abs(to_floats(truncate(x))), sign_bit(x));
  return abs(x) < 0x1p23f ? t : x;
}
ASPEN_INLINE Floats floor(Floats x) {
  const Floats t = truncated(x);
  return t > x ? t - 1.0f : t;
}
ASPEN_INLINE Floats ceil(Floats x) {
  const Floats t = truncated(x);
  return with_sign(t < x ? t + 1.0f : t, sign_bit(x) & as_ints(t));
}
ASPEN_INLINE Floats round_half_away(Floats x) {
  const Floats t = truncated(x);
  const Floats away = t + with_sign(broadcast(1.0f), sign_bit(x));
  return abs(x - t) >= 0.5f ? away : t;
}
ASPEN_INLINE Floats round_half_even(Floats x) {
  const Floats magnitude = abs(x);
  const Floats rounded = (magnitude + 0x1p23f) - 0x1p23f;
  return magnitude < 0x1p23f ? with_sign(rounded, sign_bit(x)) : x;
}

ASPEN_INLINE Floats sqrt(Floats x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  Floats y;
  for (int i = 0; i < kLanes; ++i) y[i] = std::sqrt(x[i]);
  return y;
#endif
}

// x = n ln 2 + r with |r| <= ln(2) / 2. The sum with 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
struct ExpReduction {
  Floats n;
  Ints n_bits;
  Floats r;
};
ASPEN_INLINE ExpReduction reduce_exp(Floats x) {
  constexpr float kShift = 0x1.8p23f;
  const Floats shifted = x * 1.44269504f + kShift;
  const Floats n = shifted - kShift;
  // ln 2 in two parts, the first of 9 bits so that its product with n is exact.
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  return {n, as_ints(shifted) - 0x4b400000, r};
}

// p * 2^n, for |n| <= 250; n given as a float and as an integer.
ASPEN_INLINE Floats scale(Floats p, [[maybe_unused]] Floats n, [[maybe_unused]] Ints n_bits) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  const Ints half = n_bits >> 1;  // in two steps: 2^n itself may overflow, or be denormal
  return p * as_floats((half + 127) << 23) * as_floats((n_bits - half + 127) << 23);
#endif
}

ASPEN_INLINE Floats exp(Floats x) {
  x = x > 100.0f ? broadcast(100.0f) : x;
  x = x < -110.0f ? broadcast(-110.0f) : x;
  const ExpReduction e = reduce_exp(x);
  // (e^r - 1 - r) / r^2 on |r| <= 0.347: 3.1e-9 relative to e^r.
  constexpr float kC[] = {0.4999999403953552f, 0.1666651964187622f, 0.04166839271783829f, 0.008368780836462975f,
                          0.001381447073072195f};
  const Floats p = polynomial(e.r, kC) * (e.r * e.r) + e.r + 1.0f;
  return scale(p, e.n, e.n_bits);
}

ASPEN_INLINE Floats exp2(Floats x) {
  x = x > 200.0f ? broadcast(200.0f) : x;
  x = x < -200.0f ? broadcast(-200.0f) : x;
  constexpr float kShift = 0x1.8p23f;
  const Floats shifted = x + kShift;
  const Floats n = shifted - kShift;
  // (2^r - 1) / r on |r| <= 0.5: 4.8e-11 absolute.
  constexpr float kC[] = {0.6931471824645996f,    0.24022650718688965f,   0.05550410971045494f,   0.009618036448955536f,
                          0.0013333429815247655f, 0.0001546723797218874f, 1.5315086784539744e-05f};
  const Floats r = x - n;
  return scale(polynomial(r, kC) * r + 1.0f, n, as_ints(shifted) - 0x4b400000);
}

ASPEN_INLINE Floats expm1(Floats x) {
  const Ints sign = sign_bit(x);
  x = x > 89.0f ? broadcast(89.0f) : x;
  x = x < -30.0f ? broadcast(-30.0f) : x;
  const ExpReduction e = reduce_exp(x);
  // (e^r - 1 - r) / r^2 on |r| <= 0.347: 2.4e-10 relative to r.
  constexpr float kC[] = {
      0.5f, 0.1666666716337204f, 0.04166635498404503f, 0.008333273231983185f, 0.0013941102661192417f, 0.0001991430326597765f};
  const Floats q = polynomial(e.r, kC) * (e.r * e.r) + e.r;  // e^r - 1
  const Floats half = as_floats((e.n_bits + 126) << 23);     // 2^(n-1), which is finite where 2^n is not
  return with_sign((half * q + (half - 0.5f)) * 2.0f, sign);
}

// log(2^e (1 + f)) for 1 + f in [sqrt(1/2), sqrt(2)].
ASPEN_INLINE Floats log_reduced(Floats e, Floats f) {
  // (log(1 + f) - f + f^2 / 2) / f^3: 5.9e-9 relative to log(1 + f).
  constexpr float kC[] = {0.3333333134651184f,  -0.250008225440979f,   0.20001232624053955f, -0.16623298823833466f,
                          0.14201554656028748f, -0.13160580396652222f, 0.12763313949108124f, -0.076356440782547f};
  const Floats f2 = f * f;
  Floats y = polynomial(f, kC) * (f2 * f);
  y = y - e * 2.12194440e-4f;
  y = y - 0.5f * f2;
  return (f + y) + e * 0.693359375f;
}

// The exponent e for which x * 2^-e is in [sqrt(1/2), sqrt(2)); x is positive and normal.
ASPEN_INLINE Ints log_exponent(Floats x) { return minus(as_ints(x), broadcast(int32_t{0x3f3504f3})) >> 23; }

ASPEN_INLINE Floats log_special(Floats x, Floats result) {
  result = x == kInfinity ? x : result;
  result = x == 0.0f ? broadcast(-kInfinity) : result;
  return x >= 0.0f ? result : broadcast(kNaN);
}

ASPEN_INLINE Floats log(Floats x) {
  const Ints denormal = x < 0x1p-126f;
  const Floats normal = denormal ? x * 0x1p23f : x;
  const Ints e = log_exponent(normal);
  const Floats f = as_floats(minus(as_ints(normal), e << 23)) - 1.0f;
  return log_special(x, log_reduced(to_floats(e + (denormal & -23)), f));
}

ASPEN_INLINE Floats log1p(Floats x) {
  const Floats u = 1.0f + x;
  const Floats lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);  // exactly 1 + x - u
  const Ints e = log_exponent(u);
  const Floats f = (as_floats(minus(as_ints(u), e << 23)) - 1.0f) + lost * as_floats(max(127 - e, Ints{}) << 23);
  return with_sign(log_special(u, log_reduced(to_floats(e), f)), sign_bit(x));
}

ASPEN_INLINE Floats tanh(Floats x) {
  Floats a = abs(x);
  a = a > 10.0f ? broadcast(10.0f) : a;
  const Floats t = expm1(a + a);
  return with_sign(t / (t + 2.0f), sign_bit(x));
}

ASPEN_INLINE Floats logistic(Floats x) { return 1.0f / (1.0f + exp(-x)); }

ASPEN_INLINE Floats erf(Floats x) {
  // erf(x) / x - 1 in x^2 on |x| <= 0.92: 4.0e-10 relative to erf(x) / x.
  constexpr float kSmall[] = {0.12837916612625122f, -0.37612634897232056f,   0.11283697187900543f,  -0.026859499514102936f,
                              0.00520128570497036f, -0.0008145594620145857f, 8.382379746763036e-05f};
  // -log(erfc(a)) on 0.92 <= a <= 4: 4.6e-11 relative to erf.
  constexpr float kLarge[] = {-0.00017468251462560147f, 1.1295149326324463f,   0.6333469152450562f,     0.10828007012605667f,
                              -0.025119412690401077f,   0.004171057604253292f, -0.0004344614571891725f, 2.1094951080158353e-05f};
  Floats a = abs(x);
  const Floats small = x * polynomial(x * x, kSmall) + x;
  a = a > 4.0f ? broadcast(4.0f) : a;
  const Floats large = with_sign(1.0f - exp(-polynomial(a, kLarge)), sign_bit(x));
  return a < 0.92f ? small : large;
}

// Half a vector, in float64.
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
  // On |r| <= 0.5: 4.1e-11 relative.
  constexpr double kC[] = {0.9999999999610697,   0.6931471807311455,    0.24022651204168552,   0.05550410347280915,
                           0.009618026440978396, 0.0013333925476306237, 0.0001546955345084427, 1.5201720570428646e-05};
  return polynomial(r, kC) * reinterpret_cast<Doubles>((shifted_bits(shifted) + 1023) << 52);
}

// log2 of a positive finite float32 (which is normal in float64).
ASPEN_INLINE Doubles log2_f64(Doubles x) {
  const Longs bits = reinterpret_cast<Longs>(x);
  const Longs e = (bits - 0x3fe6a09e667f3bcd) >> 52;  // so that m is in [sqrt(1/2), sqrt(2))
  const Doubles m = reinterpret_cast<Doubles>(bits - (e << 52));
  const Doubles s = (m - 1.0) / (m + 1.0);
  // log2((1 + s) / (1 - s)) / s in s^2 on |s| <= 0.172: 2.7e-14 relative.
  constexpr double kC[] = {2.8853900817778486, 0.9617966941158762, 0.5770779415926364,
                           0.4122093337795279, 0.3199022282961509, 0.2829514754778905};
  return __builtin_convertvector(e, Doubles) + s * polynomial(s * s, kC);
}

ASPEN_INLINE Floats cbrt(Floats x) {
  const Floats root = in_doubles([](Doubles a) { return exp2_f64(log2_f64(a) * (1.0 / 3.0)); }, abs(x));
  const Ints ordinary = (abs(x) > 0.0f) & (abs(x) < kInfinity);
  return ordinary ? with_sign(root, sign_bit(x)) : x;
}

ASPEN_INLINE Floats erfc(Floats x) {
  const Floats positive = in_doubles(
      [](Doubles a) {
        a = a > 20.0 ? 20.0 - Doubles{} : a;
        // erfc(a) e^(a^2) (1 + 2a) in (a - 3) / (a + 3) on 0 <= a <= 10.1 (beyond, the result is 0): 1.9e-9 relative.
        constexpr double kC[] = {1.2530080591223784,   -0.1356211393009376,    -0.04756239945689216,  0.1296464145435074,
                                 -0.11927097519050617, 0.06829576733618756,    -0.023797530455239864, 0.002567377783811461,
                                 0.00200181224345633,  -0.0007775842522932441, -0.0002681283062018202};
        const Doubles q = polynomial((a - 3.0) / (a + 3.0), kC) / (1.0 + 2.0 * a);
        return exp2_f64(a * a * -1.4426950408889634) * q;
      },
      abs(x));
  return x < 0.0f ? 2.0f - positive : positive;
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

// Applies a scalar function where `lanes` is set.
template <class Function>
ASPEN_INLINE Floats patched(Floats result, Ints lanes, Function function) {
  for (int i = 0; i < kLanes; ++i) {
    if (lanes[i] != 0) result[i] = function(i);
  }
  return result;
}
ASPEN_INLINE bool any(Ints lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(lanes), reinterpret_cast<__m512i>(lanes)) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256(reinterpret_cast<__m256i>(lanes), reinterpret_cast<__m256i>(lanes)) == 0;
#else
  int32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= lanes[i];
  return bits != 0;
#endif
}

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

ASPEN_INLINE Floats atan2(Floats y, Floats x) {
  return patched(y, ~Ints{}, [&](int i) { return std::atan2(y[i], x[i]); });
}
// The remainder of the truncated quotient, with the sign of a.
ASPEN_INLINE Floats rem(Floats a, Floats b) {
  return patched(a, ~Ints{}, [&](int i) { return std::fmod(a[i], b[i]); });
}

}  // namespace aspen::cpu::ASPEN_TARGET
