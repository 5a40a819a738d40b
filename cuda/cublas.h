// Products by NVIDIA's cublasLt, which jax[cuda13] brings.
//
// The declarations repeat those of cublasLt.h, whose types and numbers are part of its binary interface. They hold for CUDA 12
// and 13.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "driver.h"
#include "kernels/kernel_shape.h"
#include "library_call.h"

// As in cublasLt.h, so that its types and ours are the same.
struct cublasLtContext;
struct cublasLtMatmulDescOpaque_t;
struct cublasLtMatrixLayoutOpaque_t;
struct cublasLtMatmulPreferenceOpaque_t;

namespace aspen::cuda {

using CublasStatus = int;  // cublasStatus_t
using CublasHandle = cublasLtContext*;
using ProductDescription = cublasLtMatmulDescOpaque_t*;
using MatrixLayout = cublasLtMatrixLayoutOpaque_t*;
using ProductPreference = cublasLtMatmulPreferenceOpaque_t*;

// cublasLtMatmulAlgo_t and cublasLtMatmulHeuristicResult_t.
struct Algorithm {
  uint64_t data[8];
};
struct FoundAlgorithm {
  Algorithm algorithm;
  size_t workspace_bytes;
  CublasStatus state;
  float waves;
  int reserved[4];
};

// Numbers of cudaDataType, cublasComputeType_t and cublasOperation_t.
inline constexpr int kTypeFloat32 = 0, kTypeFloat16 = 2, kTypeBFloat16 = 14;
inline constexpr int kComputeFloat32 = 68, kComputeTf32 = 77;
inline constexpr int32_t kAsItIs = 0, kTransposed = 1;
// cublasLtMatmulDescAttributes_t and cublasLtEpilogue_t.
inline constexpr int kTransposesA = 3, kTransposesB = 4, kEpilogue = 7, kBiasPointer = 8;
inline constexpr uint32_t kEndsByRelu = 2, kAddsBias = 4;  // both are one number too
// cublasLtMatrixLayoutAttribute_t.
inline constexpr int kNumMatrices = 5, kNextMatrix = 6;
// cublasLtMatmulPreferenceAttributes_t; of A, B, C and D.
inline constexpr int kMostWorkspace = 1, kReductions = 3, kAlignments[] = {5, 6, 7, 8};

struct Cublas {
#define ASPEN_CUBLAS_FUNCTION(name, parameters) CublasStatus(*name) parameters = nullptr;
#include "cublas_functions.inc"
#undef ASPEN_CUBLAS_FUNCTION

  // Throws DeviceError where there is none.
  static const Cublas& get();
  // Throws DeviceError unless the status is 0; `call` is what failed.
  static void check(CublasStatus status, const char* call);
};

// One product. Throws DeviceError.
class ProductCall final : public LibraryCall {
 public:
  ProductCall(CublasHandle handle, const LibraryProduct& product);
  void give(Stream stream, std::span<const DevicePointer> addresses) override;

 private:
  template <class T>
  using Owned = std::unique_ptr<T, CublasStatus (*)(T*)>;
  using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;

  Layout layout(int32_t type, int64_t lines, int64_t along, const LibraryMatrix& matrix) const;
  void describe(int attribute, const void* value, size_t bytes);
  void find_algorithm();

  const Cublas& library_;
  const CublasHandle handle_;
  const LibraryProduct product_;
  Owned<cublasLtMatmulDescOpaque_t> description_;
  Layout left_, right_, added_, output_;
  FoundAlgorithm found_ = {};
};

}  // namespace aspen::cuda
