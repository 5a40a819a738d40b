// The ways in which windows and reductions combine elements, and how their float and integer lanes are computed.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "elements.h"
#include "vec.h"
#include "vmath.h"

namespace aspen::cpu::ASPEN_TARGET {

// The numbers are part of the graph format. What windows and rows take is the first four.
enum class Combination { kSum = 0, kMax = 1, kMin = 2, kProduct = 3, kAnd = 4, kOr = 5, kXor = 6 };

template <class T>
using VectorOf = std::conditional_t<std::is_same_v<T, float>, Floats, Ints>;

// `otherwise`, but NaN where a or b is.
ASPEN_INLINE Floats nan_where_unordered(Floats a, Floats b, Floats otherwise) {
#if defined(__AVX512F__)
  const Floats nan = broadcast(std::numeric_limits<float>::quiet_NaN());
  return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), nan);
#elif defined(__AVX2__)
  return _mm256_or_ps(otherwise, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
#else
  return as_floats(as_ints(otherwise) | (a != a) | (b != b));
#endif
}

// T is float or int32_t; integers wrap.
template <class T, Combination kCombination>
struct Combine {
  static constexpr Combination kKind = kCombination;
  using Vector = VectorOf<T>;

  static constexpr T identity() {
    using Limits = std::numeric_limits<T>;
    constexpr bool kIsFloat = std::is_same_v<T, float>;
    if (kKind == Combination::kSum) return 0;
    if (kKind == Combination::kProduct) return 1;
    if (kKind == Combination::kMax) return kIsFloat ? -Limits::infinity() : Limits::min();
    return kIsFloat ? Limits::infinity() : Limits::max();
  }

  // `sum` is what was combined before.
  static ASPEN_INLINE Vector apply(Vector sum, Vector x) {
    if constexpr (kKind == Combination::kMax) return max(x, sum);
    if constexpr (kKind == Combination::kMin) return min(x, sum);
    if constexpr (std::is_same_v<T, float>) {
      if constexpr (kKind == Combination::kSum) return sum + x;
      if constexpr (kKind == Combination::kProduct) return sum * x;
    } else {
      const auto [a, b] = std::pair(reinterpret_cast<Uints>(sum), reinterpret_cast<Uints>(x));
      if constexpr (kKind == Combination::kSum) return reinterpret_cast<Ints>(a + b);
      if constexpr (kKind == Combination::kProduct) return reinterpret_cast<Ints>(a * b);
    }
  }
  // Combines three at once. A maximum of floats may be a -0 where +0 is among them: `may_be_off` says where.
  static ASPEN_INLINE Vector apply(Vector a, Vector b, Vector c) {
    if constexpr (kKind == Combination::kMax && std::is_same_v<T, float>) {
      // A NaN passes on as the second operand, so that only those of a and c are put in.
      return nan_where_unordered(a, c, larger_or_second(c, larger_or_second(a, b)));
    } else {
      return apply(apply(a, b), c);
    }
  }
  static ASPEN_INLINE Ints may_be_off(Vector of_three) {
    if constexpr (kKind == Combination::kMax && std::is_same_v<T, float>) {
      return as_ints(of_three) == std::numeric_limits<int32_t>::min();
    } else {
      return Ints{};
    }
  }
  static ASPEN_INLINE T apply(T sum, T x) {
    if constexpr (kKind == Combination::kMax) return larger(x, sum);
    if constexpr (kKind == Combination::kMin) return smaller(x, sum);
    if constexpr (std::is_same_v<T, float>) {
      if constexpr (kKind == Combination::kSum) return sum + x;
      if constexpr (kKind == Combination::kProduct) return sum * x;
    } else {
      const auto [a, b] = std::pair(static_cast<uint32_t>(sum), static_cast<uint32_t>(x));
      if constexpr (kKind == Combination::kSum) return static_cast<int32_t>(a + b);
      if constexpr (kKind == Combination::kProduct) return static_cast<int32_t>(a * b);
    }
  }
};

// Calls visit(Combine<T, kind>{}) for one of the first four and returns what it returns.
template <class T, class Visitor>
auto visit_combination(Combination kind, Visitor visit) {
  switch (kind) {
    case Combination::kMax:
      return visit(Combine<T, Combination::kMax>{});
    case Combination::kMin:
      return visit(Combine<T, Combination::kMin>{});
    case Combination::kProduct:
      return visit(Combine<T, Combination::kProduct>{});
    default:
      return visit(Combine<T, Combination::kSum>{});
  }
}

// Calls visit(T{}, Combine<Wide<T>, kind>{}) for elements of type T and returns what it returns; nothing for other dtypes than
// floats and int32.
template <class Visitor>
auto visit_combination_of(DType dtype, Combination kind, Visitor visit) {
  const auto visit_type = [&]<class T>(T element) {
    return visit_combination<Wide<T>>(kind, [&]<class Op>(Op op) { return visit(element, op); });
  };
  if (is_float(dtype)) return visit_float(dtype, visit_type);
  if (dtype == DType::kI32) return visit_type(int32_t{});
  return decltype(visit_type(int32_t{})){};
}

}  // namespace aspen::cpu::ASPEN_TARGET
