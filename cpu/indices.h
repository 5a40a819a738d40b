// Where the windows of gather and scatter begin: integer operands, an entry for each point of a walk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "aspen_jax/engine/kernel.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// Walks are resolved this many points at a time.
inline constexpr int64_t kIndexChunk = 256;

inline void check_index(const TensorView& view, const std::string& what) {
  if (view.dtype == DType::kBool || view.dtype >= DType::kF16) {
    throw GraphError(what + " has dtype number " + std::to_string(static_cast<int>(view.dtype)) + "; an index is an integer");
  }
}

// `count` indices as int64. A uint64 beyond its range becomes its largest, which is as far beyond any tensor.
inline void load_indices(DType dtype, const void* from, int64_t stride, int64_t count, int64_t* to) noexcept {
  const auto load_as = [&]<class T>(T) {
    const auto* at = static_cast<const T*>(from);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, uint64_t>) {
        to[i] = static_cast<int64_t>(std::min<uint64_t>(at[i * stride], std::numeric_limits<int64_t>::max()));
      } else {
        to[i] = at[i * stride];
      }
    }
  };
  switch (dtype) {
    case DType::kI8:
      return load_as(int8_t{});
    case DType::kU8:
      return load_as(uint8_t{});
    case DType::kI16:
      return load_as(int16_t{});
    case DType::kU16:
      return load_as(uint16_t{});
    case DType::kI32:
      return load_as(int32_t{});
    case DType::kU32:
      return load_as(uint32_t{});
    case DType::kI64:
      return load_as(int64_t{});
    default:
      return load_as(uint64_t{});
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
