// Elementary functions on vectors of float32, with the special values of IEEE 754 and jax.lax.
//
// The polynomials are minimax fits, computed for this file with the Remez algorithm in 40-digit arithmetic, then rounded; each
// gives its interval and its largest error before rounding. Functions that neural networks call all the time are computed in
// float32, here; the others in float64 (vmath_f64.h, trigonometry.h).
// tests/cpp/block_instructions_test.cc states and holds the error of each in ulp.
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

// e^r.
ASPEN_INLINE Floats exp_reduced(Floats r) {
  // (e^r - 1 - r) / r^2 on |r| <= 0.347: 3.1e-9 relative to e^r.
  constexpr float kC[] = {0.4999999403953552f, 0.1666651964187622f, 0.04166839271783829f, 0.008368780836462975f,
                          0.001381447073072195f};
  return polynomial(r, kC) * (r * r) + r + 1.0f;
}

ASPEN_INLINE Floats exp(Floats x) {
  x = at_most(x, broadcast(100.0f));
  x = at_least(x, broadcast(-110.0f));
  const ExpReduction e = reduce_exp(x);
  return scale(exp_reduced(e.r), e.n, e.n_bits);
}

ASPEN_INLINE Floats exp2(Floats x) {
  x = at_most(x, broadcast(200.0f));
  x = at_least(x, broadcast(-200.0f));
  constexpr float kShift = 0x1.8p23f;
  const Floats shifted = x + kShift;
  const Floats n = shifted - kShift;
  // (2^r - 1) / r on |r| <= 0.5: 4.8e-11 absolute.
  constexpr float kC[] = {0.6931471824645996f,    0.24022650718688965f,   0.05550410971045494f,   0.009618036448955536f,
                          0.0013333429815247655f, 0.0001546723797218874f, 1.5315086784539744e-05f};
  const Floats r = x - n;
  return scale(polynomial(r, kC) * r + 1.0f, n, as_ints(shifted) - 0x4b400000);
}

// e^x - 1; of a denormal x it loses the last bit.
ASPEN_INLINE Floats expm1_of_normal(Floats x) {
  const Ints sign = sign_bit(x);
  x = at_most(x, broadcast(89.0f));
  x = at_least(x, broadcast(-30.0f));
  const ExpReduction e = reduce_exp(x);
  // (e^r - 1 - r) / r^2 on |r| <= 0.347: 2.4e-10 relative to r.
  constexpr float kC[] = {
      0.5f, 0.1666666716337204f, 0.04166635498404503f, 0.008333273231983185f, 0.0013941102661192417f, 0.0001991430326597765f};
  const Floats q = polynomial(e.r, kC) * (e.r * e.r) + e.r;  // e^r - 1
  const Floats half = as_floats((e.n_bits + 126) << 23);     // 2^(n-1), which is finite where 2^n is not
  return with_sign((half * q + (half - 0.5f)) * 2.0f, sign);
}

ASPEN_INLINE Floats expm1(Floats x) { return abs(x) < 0x1p-126f ? x : expm1_of_normal(x); }

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
  a = at_most(a, broadcast(10.0f));
  const Floats t = expm1_of_normal(a + a);  // an even number of the least ones
  return with_sign(t / (t + 2.0f), sign_bit(x));
}

ASPEN_INLINE Floats logistic(Floats x) { return 1.0f / (1.0f + exp(-x)); }

// erf(x) for |x| <= 0.92.
ASPEN_INLINE Floats erf_small(Floats x) {
  // erf(x) / x - 1 in x^2: 4.0e-10 relative to erf(x) / x.
  constexpr float kC[] = {0.12837916612625122f, -0.37612634897232056f,   0.11283697187900543f,  -0.026859499514102936f,
                          0.00520128570497036f, -0.0008145594620145857f, 8.382379746763036e-05f};
  return x * polynomial(x * x, kC) + x;
}

ASPEN_INLINE Floats erf(Floats x) {
  // -log(erfc(a)) on 0.92 <= a <= 4: 4.6e-11 relative to erf.
  constexpr float kLarge[] = {-0.00017468251462560147f, 1.1295149326324463f,   0.6333469152450562f,     0.10828007012605667f,
                              -0.025119412690401077f,   0.004171057604253292f, -0.0004344614571891725f, 2.1094951080158353e-05f};
  Floats a = abs(x);
  const Floats small = erf_small(x);
  a = at_most(a, broadcast(4.0f));
  const Floats large = with_sign(1.0f - exp(-polynomial(a, kLarge)), sign_bit(x));
  return a < 0.92f ? small : large;
}

ASPEN_INLINE Floats erfc(Floats x) {
  // erfc(a) e^(a^2) (1 + 2a) in (a - 3) / (a + 3) on 0 <= a <= 10.1 (beyond, the result is 0): 1.9e-9 relative.
  constexpr float kC[] = {1.2530080591223784f,   -0.1356211393009376f,    -0.04756239945689216f,  0.1296464145435074f,
                          -0.11927097519050617f, 0.06829576733618756f,    -0.023797530455239864f, 0.002567377783811461f,
                          0.00200181224345633f,  -0.0007775842522932441f, -0.0002681283062018202f};
  Floats a = abs(x);
  a = at_most(a, broadcast(11.0f));
  ExpReduction e = reduce_exp(-(a * a));
  // Again, from a^2 in two parts, the first of 12 bits squared, which is exact.
  const Floats high = as_floats(as_ints(a) & ~0xfff);
  e.r = ((-(high * high) - e.n * 0.693359375f) + e.n * 2.12194440e-4f) - (a - high) * (a + high);
  const Floats q = polynomial((a - 3.0f) / (a + 3.0f), kC) / (1.0f + 2.0f * a);
  const Floats positive = scale(exp_reduced(e.r) * q, e.n, e.n_bits);
  const Floats large = x < 0.0f ? 2.0f - positive : positive;
  return a < 0.5f ? 1.0f - erf_small(x) : large;
}

}  // namespace aspen::cpu::ASPEN_TARGET
