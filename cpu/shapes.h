// Shapes of views, and how their elements lie.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu {

// Boxes are 32-bit, and products of two extents must not overflow 64 bits.
inline constexpr int64_t kMaxExtent = INT32_MAX;

inline std::span<const int64_t> shape_of(const TensorView& view) { return {view.shape, static_cast<size_t>(view.rank)}; }

inline std::string describe(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}
inline std::string describe(const TensorView& view) { return describe(shape_of(view)); }

inline bool is_empty(const TensorView& view) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return true;
  }
  return false;
}

// Whether the elements lie one behind the other, row by row. Those of an empty view do, whatever its strides.
inline bool is_dense(const TensorView& view) {
  if (is_empty(view)) return true;
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] > 1 && view.strides[i] != stride) return false;
    stride *= view.shape[i];  // cannot overflow: the elements lie in a buffer
  }
  return true;
}

// The stride of a dimension; 0 where it is never used, so that no stride is longer than the buffer.
inline int64_t used_stride(const TensorView& view, int axis) {
  return view.shape[axis] > 1 && !is_empty(view) ? view.strides[axis] : 0;
}

// How many windows of `size` elements fit into `extent`, each `step` behind the one before.
constexpr int64_t num_windows(int64_t extent, int64_t size, int64_t step) {
  return extent < size ? 0 : (extent - size) / step + 1;
}

}  // namespace aspen::cpu
