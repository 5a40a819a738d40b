// Products by NVIDIA's cublasLt, in the place of kernels of ours. The library is looked for when it is first asked for:
// jax[cuda13] brings it. Building needs no library.
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

// As in cublasLt.h, so that its types and ours are the same.
struct cublasLtContext;
struct cublasLtMatmulDescOpaque_t;
struct cublasLtMatrixLayoutOpaque_t;
struct cublasLtMatmulPreferenceOpaque_t;

namespace aspen::cuda {

using LibraryStatus = int;  // cublasStatus_t
using LibraryHandle = cublasLtContext*;
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
  LibraryStatus state;
  float waves;
  int reserved[4];
};

// Numbers of cudaDataType, cublasComputeType_t and cublasOperation_t.
inline constexpr int kTypeFloat32 = 0, kTypeFloat16 = 2, kTypeBFloat16 = 14;
inline constexpr int kComputeFloat32 = 68, kComputeTf32 = 77;
inline constexpr int32_t kAsItIs = 0, kTransposed = 1;
// cublasLtMatmulDescAttributes_t and cublasLtEpilogue_t.
inline constexpr int kTransposesA = 3, kTransposesB = 4, kEpilogue = 7, kBiasPointer = 8;
inline constexpr uint32_t kNoEpilogue = 1, kRelu = 2, kAddsBias = 4;
// cublasLtMatrixLayoutAttribute_t.
inline constexpr int kNumMatrices = 5, kNextMatrix = 6;
// cublasLtMatmulPreferenceAttributes_t; of A, B, C and D.
inline constexpr int kMostWorkspace = 1, kReductions = 3, kAlignments[] = {5, 6, 7, 8};

struct Library {
#define ASPEN_LIBRARY_FUNCTION(name, parameters) LibraryStatus(*name) parameters = nullptr;
#include "library_functions.inc"
#undef ASPEN_LIBRARY_FUNCTION

  // Throws DeviceError where there is none.
  static const Library& get();
  // Throws DeviceError unless the status is 0; `call` is what failed.
  static void check(LibraryStatus status, const char* call);
};

// One product, as the library does it in the current context, without a workspace: so runs may overlap. Throws DeviceError.
class LibraryCall {
 public:
  LibraryCall(LibraryHandle handle, const LibraryProduct& product);
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;

  // Gives it to a stream, or to what captures the stream's work. `addresses`: of the op's inputs, then its output.
  void give(Stream stream, std::span<const DevicePointer> addresses);

 private:
  template <class T>
  using Owned = std::unique_ptr<T, LibraryStatus (*)(T*)>;
  using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;

  Layout layout(int32_t type, int64_t lines, int64_t along, const LibraryMatrix& matrix) const;
  void describe(int attribute, const void* value, size_t bytes);
  void find_algorithm();

  const Library& library_;
  const LibraryHandle handle_;
  const LibraryProduct product_;
  Owned<cublasLtMatmulDescOpaque_t> description_;
  Layout left_, right_, added_, output_;
  FoundAlgorithm found_ = {};
};

}  // namespace aspen::cuda
