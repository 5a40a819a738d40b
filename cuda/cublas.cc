#include "cublas.h"

#include <string>

#include "aspen_jax/engine/made_once.h"

namespace aspen::cuda {
namespace {

// Elements are aligned so far at least, in bytes: Python sees to it.
constexpr uint32_t kAlignment = 16;
constexpr uint64_t kNoWorkspace = 0;
// Sums of one depth are not shared out: blocks would add them up in 16 bits, or in a workspace.
constexpr uint32_t kNoReductions = 0;

Cublas load() {
  const OpenedLibrary opened("cublasLt", {"libcublasLt.so.13", "libcublasLt.so.12"});
  Cublas library;
#define ASPEN_CUBLAS_FUNCTION(name, parameters) opened.find(library.name, #name);
#include "cublas_functions.inc"
#undef ASPEN_CUBLAS_FUNCTION
  return library;
}

int type_of(int32_t type) { return type == kFloat32 ? kTypeFloat32 : type == kBFloat16 ? kTypeBFloat16 : kTypeFloat16; }

}  // namespace

const Cublas& Cublas::get() {
  static constinit MadeOnce<Cublas> library;
  return library.get(load);
}

void Cublas::check(CublasStatus status, const char* call) { check_status(status, call, "cuBLAS"); }

// The library has columns adjacent. So it computes the transposed result, of the right side's transpose by the left one's.
ProductCall::ProductCall(CublasHandle handle, const LibraryProduct& product)
    : library_(Cublas::get()),
      handle_(handle),
      product_(product),
      description_(nullptr, library_.cublasLtMatmulDescDestroy),
      left_(layout(product.operands, product.rows, product.depth, product.left)),
      right_(layout(product.operands, product.depth, product.columns, product.right)),
      added_(layout(product.result, product.rows, product.columns, product.added.input < 0 ? product.output : product.added)),
      output_(layout(product.result, product.rows, product.columns, product.output)) {
  ProductDescription description = nullptr;
  const int compute_type = product.operands == kFloat32 ? kComputeTf32 : kComputeFloat32;
  Cublas::check(library_.cublasLtMatmulDescCreate(&description, compute_type, kTypeFloat32), "cublasLtMatmulDescCreate");
  description_.reset(description);
  const int32_t right = product.right.is_transposed != 0 ? kTransposed : kAsItIs;
  const int32_t left = product.left.is_transposed != 0 ? kTransposed : kAsItIs;
  describe(kTransposesA, &right, sizeof right);
  describe(kTransposesB, &left, sizeof left);
  const uint32_t epilogue = (product.relu != 0 ? kEndsByRelu : 0) | (product.bias >= 0 ? kAddsBias : 0);
  if (epilogue != 0) describe(kEpilogue, &epilogue, sizeof epilogue);
  find_algorithm();
}

ProductCall::Layout ProductCall::layout(int32_t type, int64_t lines, int64_t along, const LibraryMatrix& matrix) const {
  MatrixLayout made = nullptr;
  const auto across = static_cast<uint64_t>(matrix.is_transposed != 0 ? lines : along);
  const auto down = static_cast<uint64_t>(matrix.is_transposed != 0 ? along : lines);
  Cublas::check(library_.cublasLtMatrixLayoutCreate(&made, type_of(type), across, down, matrix.line),
                "cublasLtMatrixLayoutCreate");
  Layout owned(made, library_.cublasLtMatrixLayoutDestroy);
  const auto matrices = static_cast<int32_t>(product_.matrices);
  const auto set = [&](int attribute, const void* value, size_t bytes) {
    Cublas::check(library_.cublasLtMatrixLayoutSetAttribute(made, attribute, value, bytes), "cublasLtMatrixLayoutSetAttribute");
  };
  set(kNumMatrices, &matrices, sizeof matrices);
  set(kNextMatrix, &matrix.matrix, sizeof matrix.matrix);
  return owned;
}

void ProductCall::describe(int attribute, const void* value, size_t bytes) {
  Cublas::check(library_.cublasLtMatmulDescSetAttribute(description_.get(), attribute, value, bytes),
                "cublasLtMatmulDescSetAttribute");
}

void ProductCall::find_algorithm() {
  ProductPreference made = nullptr;
  Cublas::check(library_.cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(made, library_.cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](int attribute, const void* value, size_t bytes) {
    Cublas::check(library_.cublasLtMatmulPreferenceSetAttribute(made, attribute, value, bytes),
                  "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(kMostWorkspace, &kNoWorkspace, sizeof kNoWorkspace);
  prefer(kReductions, &kNoReductions, sizeof kNoReductions);
  for (const int attribute : kAlignments) prefer(attribute, &kAlignment, sizeof kAlignment);
  int count = 0;
  Cublas::check(library_.cublasLtMatmulAlgoGetHeuristic(handle_, description_.get(), right_.get(), left_.get(), added_.get(),
                                                        output_.get(), made, 1, &found_, &count),
                "cublasLtMatmulAlgoGetHeuristic");
  if (count < 1 || found_.state != 0 || found_.workspace_bytes != 0)
    throw DeviceError("cublasLt has no way to multiply these matrices; tune again, which refuses such products");
}

void ProductCall::give(Stream stream, std::span<const DevicePointer> addresses) {
  const auto at = [&](int32_t input) { return reinterpret_cast<void*>(addresses[static_cast<size_t>(input)]); };
  if (product_.bias >= 0) {
    const void* const bias = at(product_.bias);
    describe(kBiasPointer, &bias, sizeof bias);
  }
  void* const output = reinterpret_cast<void*>(addresses.back());
  const bool adds = product_.added.input >= 0;
  const float one = 1, beta = adds ? 1 : 0;
  Cublas::check(library_.cublasLtMatmul(handle_, description_.get(), &one, at(product_.right.input), right_.get(),
                                        at(product_.left.input), left_.get(), &beta, adds ? at(product_.added.input) : output,
                                        added_.get(), output, output_.get(), &found_.algorithm, nullptr, 0, stream),
                "cublasLtMatmul");
}

}  // namespace aspen::cuda
