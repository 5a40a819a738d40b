// Elements one at a time as the numbers they stand for, for kernels whose arithmetic does not fit vectors of 32-bit lanes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "aspen_jax/engine/kernel.h"
#include "elements.h"

namespace aspen::cpu::ASPEN_TARGET {

// Calls visit(T{}) with the type of the elements; bools are bytes of 0 and 1.
template <class Visitor>
inline auto visit_number(DType dtype, Visitor visit) {
  switch (dtype) {
    case DType::kI8:
      return visit(int8_t{});
    case DType::kI16:
      return visit(int16_t{});
    case DType::kU16:
      return visit(uint16_t{});
    case DType::kI32:
      return visit(int32_t{});
    case DType::kU32:
      return visit(uint32_t{});
    case DType::kI64:
      return visit(int64_t{});
    case DType::kU64:
      return visit(uint64_t{});
    case DType::kF16:
      return visit(F16{});
    case DType::kBF16:
      return visit(BF16{});
    case DType::kF32:
      return visit(float{});
    case DType::kF64:
      return visit(double{});
    default:
      return visit(uint8_t{});
  }
}

template <class T>
ASPEN_INLINE auto to_number(T x) {
  if constexpr (Narrow<T>) {
    return to_float(x);
  } else {
    return x;
  }
}
template <class T, class Number>
ASPEN_INLINE T from_number(Number x) {
  if constexpr (Narrow<T>) {
    return from_lane<T>(std::bit_cast<int32_t>(static_cast<float>(x)));
  } else {
    return static_cast<T>(x);
  }
}

// What running results are kept in: float64 or 64-bit integers.
template <class T>
using Running = std::conditional_t<Narrow<T> || std::is_floating_point_v<T>, double,
                                   std::conditional_t<std::is_unsigned_v<T>, uint64_t, int64_t>>;

}  // namespace aspen::cpu::ASPEN_TARGET
