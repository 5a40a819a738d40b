// Element types as they lie in memory, and how they become the lanes of vectors: floats of 16 bits are widened to float32 (which
// holds them exactly) and rounded to the nearest, ties to even, when stored; integers are widened and lose their high bits;
// a bool is a mask.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aspen_jax/engine/kernel.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

struct Bool {
  uint8_t byte;
};
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

typedef uint16_t Shorts __attribute__((vector_size(2 * kLanes)));

// The formulas below serve one uint32_t and a vector of them: these reinterpret either.
ASPEN_INLINE float float_from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
ASPEN_INLINE uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
ASPEN_INLINE Floats float_from_bits(Uints bits) { return reinterpret_cast<Floats>(bits); }
ASPEN_INLINE Uints float_bits(Floats x) { return reinterpret_cast<Uints>(x); }

inline constexpr uint32_t kInfinityBits = 0x7f800000;
inline constexpr uint32_t kMagnitude = 0x7fffffff;
// The difference between the exponents' biases of float32 and float16.
inline constexpr uint32_t kHalfBias = 112u << 23;

// float32 bits to bfloat16 bits. A NaN stays one whatever its low bits are.
template <class U>
ASPEN_INLINE U bf16_from_f32(U x) {
  const U rounded = (x + (0x7fffu + ((x >> 16) & 1u))) >> 16;
  return (x & kMagnitude) > kInfinityBits ? (x >> 16) | 0x40u : rounded;
}

// float16 bits to float32 bits.
template <class U>
ASPEN_INLINE U f32_from_f16(U x) {
  const U magnitude = x & 0x7fffu;
  const U normal = (magnitude << 13) + kHalfBias;
  // The bits of 1/2 with m in its last places are 1/2 + m * 2^-24.
  const U denormal = float_bits(float_from_bits(magnitude + float_bits(0.5f)) - 0.5f);
  const U finite = magnitude < 0x400u ? denormal : normal;
  return (magnitude >= 0x7c00u ? normal + kHalfBias : finite) | ((x & 0x8000u) << 16);
}

// float32 bits to float16 bits.
template <class U>
ASPEN_INLINE U f16_from_f32(U x) {
  const U magnitude = x & kMagnitude;
  const U normal = (magnitude + (0xfffu + ((magnitude >> 13) & 1u)) - kHalfBias) >> 13;
  const U denormal = float_bits(float_from_bits(magnitude) + 0.5f) - float_bits(0.5f);
  const U finite = magnitude < float_bits(0x1p-14f) ? denormal : normal;
  const U all = magnitude >= float_bits(65520.0f) ? (magnitude > kInfinityBits ? U{} + 0x7e00u : U{} + 0x7c00u) : finite;
  return all | ((x >> 16) & 0x8000u);
}

ASPEN_INLINE Floats widen(Shorts bits, BF16) { return float_from_bits(__builtin_convertvector(bits, Uints) << 16); }
ASPEN_INLINE Shorts narrow(Floats x, BF16) { return __builtin_convertvector(bf16_from_f32(float_bits(x)), Shorts); }
ASPEN_INLINE Floats widen(Shorts bits, F16) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(bits));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(bits));
#else
  return float_from_bits(f32_from_f16(__builtin_convertvector(bits, Uints)));
#endif
}
ASPEN_INLINE Shorts narrow(Floats x, F16) {
#if defined(__AVX512F__)
  return reinterpret_cast<Shorts>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  return reinterpret_cast<Shorts>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  return __builtin_convertvector(f16_from_f32(float_bits(x)), Shorts);
#endif
}

// Rounds to a value that T holds.
template <class T>
ASPEN_INLINE Floats rounded(Floats x) {
  return widen(narrow(x, T{}), T{});
}

// One element.
ASPEN_INLINE float to_float(float x) { return x; }
ASPEN_INLINE float to_float(BF16 x) { return float_from_bits(uint32_t{x.bits} << 16); }
ASPEN_INLINE float to_float(F16 x) { return float_from_bits(f32_from_f16(uint32_t{x.bits})); }

// The vectors of vec.h, from and to memory that holds 16-bit floats.
template <class T>
concept Narrow = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;

template <Narrow T>
ASPEN_INLINE Floats load(const T* from) {
  Shorts bits;
  std::memcpy(&bits, from, sizeof bits);
  return widen(bits, T{});
}
template <Narrow T>
ASPEN_INLINE void store(T* to, Floats x) {
  const Shorts bits = narrow(x, T{});
  std::memcpy(to, &bits, sizeof bits);
}
template <Narrow T>
ASPEN_INLINE Floats load_partial(const T* from, int n) {
#if defined(__AVX512F__)
  return widen(reinterpret_cast<Shorts>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), from)), T{});
#else
  Shorts bits = {};
  std::memcpy(&bits, from, static_cast<size_t>(n) * sizeof(T));
  return widen(bits, T{});
#endif
}
template <Narrow T>
ASPEN_INLINE void store_partial(T* to, Floats x, int n) {
  const Shorts bits = narrow(x, T{});
#if defined(__AVX512F__)
  _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m256i>(bits));
#else
  std::memcpy(to, &bits, static_cast<size_t>(n) * sizeof(T));
#endif
}

// What kernels compute with: float32 for floats of any size.
template <class T>
using Wide = std::conditional_t<Narrow<T>, float, T>;
template <class T>
ASPEN_INLINE Wide<T> widened(T x) {
  if constexpr (Narrow<T>) {
    return to_float(x);
  } else {
    return x;
  }
}
constexpr bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }
constexpr DType wide(DType dtype) { return is_float(dtype) ? DType::kF32 : dtype; }

// Copies elements that lie `step` apart as adjacent float32.
template <class T>
ASPEN_INLINE void widen_row(const T* from, int64_t step, int64_t count, float* to) {
  int64_t i = 0;
  if (step == 1) {
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    if (i == count) return;
    const int tail = static_cast<int>(count - i);
    return store_partial(to + i, load_partial(from + i, tail), tail);
  }
  for (; i < count; ++i) to[i] = to_float(from[i * step]);
}

// Elements of any type as lanes, whatever the lanes mean.
template <class T>
ASPEN_INLINE int32_t to_lane(T x) {
  if constexpr (std::is_same_v<T, Bool>) {
    return -static_cast<int32_t>(x.byte != 0);
  } else if constexpr (Narrow<T>) {
    return std::bit_cast<int32_t>(to_float(x));
  } else {
    return static_cast<int32_t>(x);
  }
}
template <class T>
ASPEN_INLINE T from_lane(int32_t lane) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>(lane & 1)};
  } else if constexpr (std::is_same_v<T, BF16>) {
    return {static_cast<uint16_t>(bf16_from_f32(static_cast<uint32_t>(lane)))};
  } else if constexpr (std::is_same_v<T, F16>) {
    return {static_cast<uint16_t>(f16_from_f32(static_cast<uint32_t>(lane)))};
  } else {
    return static_cast<T>(lane);
  }
}
// kLanes adjacent elements. Bytes become lanes, and lanes bytes, by way of 16 bits: GCC 12 takes a vector apart, element by
// element, that has to grow or shrink fourfold at once.
template <class T>
ASPEN_INLINE Ints to_lanes(const T* from) {
  if constexpr (Narrow<T>) {
    return as_ints(load(from));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return to_lanes(&from->byte) != 0;
  } else {
    typedef T Vector __attribute__((vector_size(sizeof(T) * kLanes)));
    Vector x;
    std::memcpy(&x, from, sizeof x);
    if constexpr (sizeof(T) == 1) {
      typedef std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t> Wider;
      typedef Wider Between __attribute__((vector_size(sizeof(Wider) * kLanes)));
      return __builtin_convertvector(__builtin_convertvector(x, Between), Ints);
    } else {
      return __builtin_convertvector(x, Ints);
    }
  }
}
template <class T>
ASPEN_INLINE void from_lanes(T* to, Ints lanes) {
  if constexpr (Narrow<T>) {
    store(to, as_floats(lanes));
  } else if constexpr (std::is_same_v<T, Bool>) {
    from_lanes(&to->byte, lanes & 1);
  } else {
    typedef T Vector __attribute__((vector_size(sizeof(T) * kLanes)));
    Vector x;
    if constexpr (sizeof(T) == 1) {
      x = __builtin_convertvector(__builtin_convertvector(lanes, Shorts), Vector);
    } else {
      x = __builtin_convertvector(lanes, Vector);
    }
    std::memcpy(to, &x, sizeof x);
  }
}

// Calls visit(T{}) with the type of the elements, which are floats.
template <class Visitor>
ASPEN_INLINE auto visit_float(DType dtype, Visitor visit) {
  if (dtype == DType::kF16) return visit(F16{});
  if (dtype == DType::kBF16) return visit(BF16{});
  return visit(float{});
}

// Calls visit(T{}) with the type of the elements, which lanes can hold; 32-bit types are all int32_t.
template <class Visitor>
ASPEN_INLINE auto visit_element(DType dtype, Visitor visit) {
  switch (dtype) {
    case DType::kBool:
      return visit(Bool{});
    case DType::kI8:
      return visit(int8_t{});
    case DType::kU8:
      return visit(uint8_t{});
    case DType::kI16:
      return visit(int16_t{});
    case DType::kU16:
      return visit(uint16_t{});
    case DType::kF16:
      return visit(F16{});
    case DType::kBF16:
      return visit(BF16{});
    default:
      return visit(int32_t{});
  }
}

// Calls visit(T{}) with the unsigned type of `bytes` bytes.
template <class Visitor>
void visit_size(int64_t bytes, Visitor visit) {
  switch (bytes) {
    case 1:
      return visit(uint8_t{});
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    case 8:
      return visit(uint64_t{});
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
