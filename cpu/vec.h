// A SIMD register of 32-bit lanes, as wide as the target's. Floats and Ints are GCC vector extensions, so the arithmetic,
// bitwise and comparison operators work on them; a comparison gives Ints, all ones where true, and `mask ? a : b` selects.
// Here are only the operations for which the language has no operator.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace aspen::cpu::ASPEN_TARGET {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRegisters = 16;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 16;
#endif
inline constexpr int kLanes = kVectorBytes / 4;

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Uints __attribute__((vector_size(kVectorBytes)));

#define ASPEN_INLINE inline __attribute__((always_inline))

ASPEN_INLINE Floats broadcast(float x) { return x - Floats{}; }  // x - 0 keeps the sign of a zero; x + 0 would not
ASPEN_INLINE Ints broadcast(int32_t x) { return x - Ints{}; }

// The same bits as another type of vector.
ASPEN_INLINE Ints as_ints(Floats x) { return reinterpret_cast<Ints>(x); }
ASPEN_INLINE Floats as_floats(Ints x) { return reinterpret_cast<Floats>(x); }

// Lanes 0, 1, 2, ...
ASPEN_INLINE Ints iota() {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// Loads and stores need no alignment.
ASPEN_INLINE Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
ASPEN_INLINE Ints load(const int32_t* from) {
  Ints x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
ASPEN_INLINE void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }
ASPEN_INLINE void store(int32_t* to, Ints x) { std::memcpy(to, &x, sizeof x); }

// The first n lanes, 0 <= n <= kLanes; memory beyond them is not touched. The other lanes of a partial load are zero.
ASPEN_INLINE Floats load_partial(const float* from, int n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), from);
#elif defined(__AVX2__)
  return _mm256_maskload_ps(from, reinterpret_cast<__m256i>(iota() < n));
#else
  Floats x = {};
  for (int i = 0; i < n; ++i) x[i] = from[i];
  return x;
#endif
}
ASPEN_INLINE void store_partial(float* to, Floats x, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << n) - 1), x);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(to, reinterpret_cast<__m256i>(iota() < n), x);
#else
  for (int i = 0; i < n; ++i) to[i] = x[i];
#endif
}
ASPEN_INLINE Ints load_partial(const int32_t* from, int n) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1), from));
#elif defined(__AVX2__)
  return reinterpret_cast<Ints>(_mm256_maskload_epi32(from, reinterpret_cast<__m256i>(iota() < n)));
#else
  Ints x = {};
  for (int i = 0; i < n; ++i) x[i] = from[i];
  return x;
#endif
}
ASPEN_INLINE void store_partial(int32_t* to, Ints x, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512i>(x));
#elif defined(__AVX2__)
  _mm256_maskstore_epi32(to, reinterpret_cast<__m256i>(iota() < n), reinterpret_cast<__m256i>(x));
#else
  for (int i = 0; i < n; ++i) to[i] = x[i];
#endif
}

// Half a vector, where arithmetic on it costs half as much.
inline constexpr bool kHasHalves = kVectorBytes == 64;
typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));
ASPEN_INLINE HalfFloats low_half(Floats x) {
#if defined(__AVX512F__)
  return _mm512_castps512_ps256(x);
#else
  HalfFloats y;
  for (int i = 0; i < kLanes / 2; ++i) y[i] = x[i];
  return y;
#endif
}
// The other lanes are anything.
ASPEN_INLINE Floats widened(HalfFloats x) {
#if defined(__AVX512F__)
  return _mm512_castps256_ps512(x);
#else
  Floats y = {};
  for (int i = 0; i < kLanes / 2; ++i) y[i] = x[i];
  return y;
#endif
}
// The first n lanes, 0 <= n <= kLanes / 2; the others are zero.
ASPEN_INLINE HalfFloats load_partial_half(const float* from, int n) {
#if defined(__AVX512F__)
  return _mm256_maskz_loadu_ps(static_cast<__mmask8>((1u << n) - 1), from);
#else
  return low_half(load_partial(from, n));
#endif
}

// Lane i of the result is lane lanes[i] of x, 0 <= lanes[i] < kLanes.
ASPEN_INLINE Floats permute(Floats x, Ints lanes) {
#if defined(__AVX512F__)
  return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(lanes), x);
#elif defined(__AVX2__)
  return _mm256_permutevar8x32_ps(x, reinterpret_cast<__m256i>(lanes));
#else
  Floats y;
  for (int i = 0; i < kLanes; ++i) y[i] = x[lanes[i]];
  return y;
#endif
}

// Transposes a square of vectors: of each pair of rows `kDistance` apart, the odd blocks of that many lanes of the upper change
// places with the even ones of the lower; once for each power of two.
template <int kDistance = 1>
ASPEN_INLINE void transpose(Ints (&rows)[kLanes]) {
  if constexpr (kDistance < kLanes) {
    [&]<int... lane>(std::integer_sequence<int, lane...>) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if ((i & kDistance) != 0) continue;
        const Ints upper = rows[i], lower = rows[i + kDistance];
        rows[i] = __builtin_shufflevector(upper, lower, ((lane & kDistance) != 0 ? kLanes + lane - kDistance : lane)...);
        rows[i + kDistance] =
            __builtin_shufflevector(upper, lower, ((lane & kDistance) != 0 ? kLanes + lane : lane + kDistance)...);
      }
    }(std::make_integer_sequence<int, kLanes>());
    transpose<2 * kDistance>(rows);
  }
}

// The sum of all lanes, by halves.
template <int kDistance = kLanes / 2>
ASPEN_INLINE float sum_of_lanes(Floats x) {
  if constexpr (kDistance > 0) {
    const Floats other = [&]<int... lane>(std::integer_sequence<int, lane...>) {
      return __builtin_shufflevector(x, x, (lane ^ kDistance)...);
    }(std::make_integer_sequence<int, kLanes>());
    return sum_of_lanes<kDistance / 2>(x + other);
  } else {
    return x[0];
  }
}

// Whether any bit is set.
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

// a * b + c; the compiler fuses it where the target can (-ffp-contract=fast).
ASPEN_INLINE Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }

// The larger or smaller of each lane; the second where they are equal, zeros of different signs among them, or either is NaN.
ASPEN_INLINE Floats larger_or_second(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
ASPEN_INLINE Floats smaller_or_second(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// Maximum as jax.lax.max, and minimum as jax.lax.min: NaN where either is NaN, and -0 is less than +0.
ASPEN_INLINE Floats max(Floats a, Floats b) {
#if defined(__AVX512DQ__)
  const Floats m = _mm512_range_ps(a, b, 0b0101);  // orders zeros, but leaves out a single NaN
  return _mm512_mask_add_ps(m, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
#else
  // Where the two orders differ, one is NaN, or they are zeros of which one has the sign. The difference is NaN, or the sign.
  const Ints first = as_ints(larger_or_second(a, b)), second = as_ints(larger_or_second(b, a)), difference = first ^ second;
  return as_floats(first | second) - as_floats(difference);
#endif
}
ASPEN_INLINE Floats min(Floats a, Floats b) {
  return as_floats(as_ints(smaller_or_second(a, b)) | as_ints(smaller_or_second(b, a)));
}
// Maximum and minimum by a bound that is no NaN. A lower bound without a sign clears the sign, an upper bound with one sets it.
ASPEN_INLINE Floats at_least(Floats x, Floats bound) {
  return as_floats(as_ints(larger_or_second(bound, x)) & (as_ints(bound) | std::numeric_limits<int32_t>::max()));
}
ASPEN_INLINE Floats at_most(Floats x, Floats bound) {
  return as_floats(as_ints(smaller_or_second(bound, x)) | (as_ints(bound) & std::numeric_limits<int32_t>::min()));
}
ASPEN_INLINE Ints max(Ints a, Ints b) { return a > b ? a : b; }
ASPEN_INLINE Ints min(Ints a, Ints b) { return a < b ? a : b; }
// Maximum and minimum of single numbers. Selections, not branches, which random data would mispredict.
template <class T>
ASPEN_INLINE T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return (a > b) | (a != a) | ((a == b) & !std::signbit(a)) ? a : b;
  return a > b ? a : b;
}
template <class T>
ASPEN_INLINE T smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return (a < b) | (a != a) | ((a == b) & std::signbit(a)) ? a : b;
  return a < b ? a : b;
}

// Conversions: float to the nearest, and truncation. Truncating a float outside the range of int32_t gives any value.
ASPEN_INLINE Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
ASPEN_INLINE Ints truncate(Floats x) { return __builtin_convertvector(x, Ints); }

}  // namespace aspen::cpu::ASPEN_TARGET
