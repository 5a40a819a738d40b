// Checks that the kernels share, made once when an op is prepared.
#pragma once

#include <string>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu {

// Boxes are 32-bit, and products of two extents must not overflow 64 bits.
inline constexpr int64_t kMaxExtent = INT32_MAX;

inline std::string describe(const TensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  return text + "]";
}

// Throws GraphError unless the view has this rank and every extent lies in [0, kMaxExtent].
inline void check_rank(const TensorView& view, int rank, const char* what) {
  if (view.rank != rank) {
    throw GraphError(std::string(what) + " has rank " + std::to_string(view.rank) + " where rank " + std::to_string(rank) +
                     " is needed");
  }
  for (int i = 0; i < rank; ++i) {
    if (view.shape[i] < 0 || view.shape[i] > kMaxExtent) {
      throw GraphError(std::string(what) + " has shape " + describe(view) + ", of which an extent lies outside [0, 2147483647]");
    }
  }
}

inline void check_float32(const TensorView& view, const char* what) {
  if (view.dtype != DType::kF32) {
    throw GraphError(std::string(what) + " has dtype number " + std::to_string(static_cast<int>(view.dtype)) +
                     "; this kernel computes float32 only, leave other types to XLA");
  }
}

inline void check_float(const TensorView& view, const char* what) {
  if (view.dtype != DType::kF32 && view.dtype != DType::kBF16 && view.dtype != DType::kF16) {
    throw GraphError(std::string(what) + " has dtype number " + std::to_string(static_cast<int>(view.dtype)) +
                     "; this kernel computes float32, bfloat16 and float16, leave other types to XLA");
  }
}

// Whether the elements lie one behind the other, row by row.
inline bool is_dense(const TensorView& view) {
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] > 1 && view.strides[i] != stride) return false;
    stride *= view.shape[i];  // cannot overflow: the elements lie in a buffer, or there are none
    if (stride == 0) return true;
  }
  return true;
}

// Throws GraphError unless the output is dense and row-major.
inline void check_dense(const TensorView& view, const char* what) {
  if (!is_dense(view)) throw GraphError(std::string(what) + " is not dense and row-major");
}

inline bool is_empty(const TensorView& view) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return true;
  }
  return false;
}

// The stride of a dimension; 0 where it is never used, so that no stride is longer than the buffer.
inline int64_t used_stride(const TensorView& view, int axis) {
  return view.shape[axis] > 1 && !is_empty(view) ? view.strides[axis] : 0;
}

}  // namespace aspen::cpu
