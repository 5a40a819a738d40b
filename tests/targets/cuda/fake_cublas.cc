// cublasLt played by the host: a libcublasLt.so.13 whose products run when the fake of CUDA's driver serves streams.
//
// It takes apart what the engine says of a product, refuses what CUDA's manual forbids, and counts what is made and not
// destroyed.
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda/cublas.h"
#include "tests/targets/cuda/fake_library.h"

using namespace aspen::cuda;

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  int compute_type;
  int32_t transposes[2];  // A and B
  uint32_t epilogue;
  const void* bias;
};
struct cublasLtMatrixLayoutOpaque_t {
  int type;
  uint64_t rows, columns;  // adjacent elements are a column's
  int64_t leading;
  int32_t matrices;
  int64_t next;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t most_workspace;
  uint32_t reductions, alignments[4];
};

namespace {

constexpr uint32_t kNoEpilogue = 1;

constexpr CublasStatus kInvalid = 7, kNotSupported = 15;
int live = 0;
int products = 0;          // that have run
CublasStatus failure = 0;  // of products from now on

int64_t size_of(int type) { return type == kTypeFloat32 ? 4 : 2; }

ElementType element(int type) { return type == kTypeFloat32 ? kFloat32 : type == kTypeBFloat16 ? kBFloat16 : kFloat16; }
float load(int type, const void* data, int64_t index) { return load_element(element(type), data, index); }
void store(int type, void* data, int64_t index, float value) { store_element(element(type), data, index, value); }

// Whether memory holds all matrices of a layout.
bool holds(const void* data, const cublasLtMatrixLayoutOpaque_t& layout) {
  if (layout.next < 0) return false;
  const int64_t last = (layout.matrices - 1) * layout.next + (static_cast<int64_t>(layout.columns) - 1) * layout.leading;
  const auto bytes = static_cast<size_t>((last + static_cast<int64_t>(layout.rows)) * size_of(layout.type));
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && fake_cuda_has(reinterpret_cast<DevicePointer>(data), bytes);
}

// Of a matrix as it is or transposed.
struct Matrix {
  const void* data;
  cublasLtMatrixLayoutOpaque_t layout;
  bool is_transposed;

  int64_t rows() const { return static_cast<int64_t>(is_transposed ? layout.columns : layout.rows); }
  int64_t columns() const { return static_cast<int64_t>(is_transposed ? layout.rows : layout.columns); }
  float at(int64_t matrix, int64_t row, int64_t column) const {
    const int64_t down = is_transposed ? column : row, across = is_transposed ? row : column;
    return load(layout.type, data, matrix * layout.next + across * layout.leading + down);
  }
};

template <class T>
CublasStatus make(T** made, T value) {
  *made = new T(value);
  ++live;
  return 0;
}
template <class T>
CublasStatus destroy(T* what) {
  delete what;
  --live;
  return 0;
}

template <class T>
CublasStatus set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return kInvalid;
  std::memcpy(&to, value, bytes);
  return 0;
}

bool fits(const cublasLtMatmulDescOpaque_t& description, const Matrix& a, const Matrix& b, const cublasLtMatrixLayoutOpaque_t& c,
          const cublasLtMatrixLayoutOpaque_t& d) {
  const bool has_type = description.compute_type == (a.layout.type == kTypeFloat32 ? kComputeTf32 : kComputeFloat32);
  const auto is_result = [&](const cublasLtMatrixLayoutOpaque_t& layout) {
    return static_cast<int64_t>(layout.rows) == a.rows() && static_cast<int64_t>(layout.columns) == b.columns() &&
           layout.matrices == a.layout.matrices;
  };
  return has_type && a.layout.type == b.layout.type && c.type == d.type && (d.type == a.layout.type || d.type == kTypeFloat32) &&
         a.columns() == b.rows() && a.layout.matrices == b.layout.matrices && is_result(c) && is_result(d);
}

}  // namespace

extern "C" {

// For tests.
int fake_cublas_live() { return live; }
int fake_cublas_products() { return products; }
void fake_cublas_fail(int status) { failure = status; }

CublasStatus cublasLtCreate(CublasHandle* handle) { return make(handle, {}); }
CublasStatus cublasLtDestroy(CublasHandle handle) { return destroy(handle); }
CublasStatus cublasLtMatmulDescCreate(ProductDescription* description, int compute_type, int scale_type) {
  if (scale_type != kTypeFloat32) return kNotSupported;
  return make(description, {compute_type, {kAsItIs, kAsItIs}, kNoEpilogue, nullptr});
}
CublasStatus cublasLtMatmulDescDestroy(ProductDescription description) { return destroy(description); }
CublasStatus cublasLtMatmulDescSetAttribute(ProductDescription description, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case kTransposesA:
      return set(description->transposes[0], value, bytes);
    case kTransposesB:
      return set(description->transposes[1], value, bytes);
    case kEpilogue:
      return set(description->epilogue, value, bytes);
    case kBiasPointer:
      return set(description->bias, value, bytes);
    default:
      return kInvalid;
  }
}
CublasStatus cublasLtMatrixLayoutCreate(MatrixLayout* layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (rows == 0 || columns == 0 || leading < static_cast<int64_t>(rows)) return kInvalid;
  return make(layout, {type, rows, columns, leading, 1, 0});
}
CublasStatus cublasLtMatrixLayoutDestroy(MatrixLayout layout) { return destroy(layout); }
CublasStatus cublasLtMatrixLayoutSetAttribute(MatrixLayout layout, int attribute, const void* value, size_t bytes) {
  if (attribute == kNumMatrices) return set(layout->matrices, value, bytes);
  return attribute == kNextMatrix ? set(layout->next, value, bytes) : kInvalid;
}
CublasStatus cublasLtMatmulPreferenceCreate(ProductPreference* preference) {
  return make(preference, {0, ~uint32_t{0}, {256, 256, 256, 256}});
}
CublasStatus cublasLtMatmulPreferenceDestroy(ProductPreference preference) { return destroy(preference); }
CublasStatus cublasLtMatmulPreferenceSetAttribute(ProductPreference preference, int attribute, const void* value, size_t bytes) {
  if (attribute == kMostWorkspace) return set(preference->most_workspace, value, bytes);
  if (attribute == kReductions) return set(preference->reductions, value, bytes);
  const int operand = attribute - kAlignments[0];
  return operand >= 0 && operand < 4 ? set(preference->alignments[operand], value, bytes) : kInvalid;
}
CublasStatus cublasLtMatmulAlgoGetHeuristic(CublasHandle, ProductDescription description, MatrixLayout a, MatrixLayout b,
                                            MatrixLayout c, MatrixLayout d, ProductPreference preference, int wanted,
                                            FoundAlgorithm* found, int* count) {
  const Matrix left{nullptr, *a, description->transposes[0] == kTransposed};
  const Matrix right{nullptr, *b, description->transposes[1] == kTransposed};
  *count = 0;
  if (wanted < 1 || !fits(*description, left, right, *c, *d)) return kNotSupported;
  for (const uint32_t alignment : preference->alignments) {
    if (alignment > 16) return kNotSupported;  // more than what is there has
  }
  if (preference->most_workspace != 0 || preference->reductions != 0) return kNotSupported;  // else runs must not overlap
  *count = 1;
  *found = {{{0x5eed}}, 0, 0, 1, {}};
  return 0;
}
CublasStatus cublasLtMatmul(CublasHandle, ProductDescription description, const void* alpha, const void* a, MatrixLayout a_layout,
                            const void* b, MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout, void* d,
                            MatrixLayout d_layout, const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                            Stream stream) {
  if (failure != 0) return failure;
  const Matrix left{a, *a_layout, description->transposes[0] == kTransposed};
  const Matrix right{b, *b_layout, description->transposes[1] == kTransposed};
  float scale, of_c;
  std::memcpy(&scale, alpha, sizeof scale);
  std::memcpy(&of_c, beta, sizeof of_c);
  const uint32_t epilogue = description->epilogue;
  const bool adds_bias = (epilogue & kAddsBias) != 0, is_relu = (epilogue & kEndsByRelu) != 0;
  if (!fits(*description, left, right, *c_layout, *d_layout) || algorithm->data[0] != 0x5eed ||
      (adds_bias && !description->bias) || (epilogue != kNoEpilogue && (epilogue & ~(kAddsBias | kEndsByRelu)) != 0) ||
      workspace != nullptr || workspace_bytes != 0 || !holds(a, *a_layout) || !holds(b, *b_layout) || !holds(d, *d_layout) ||
      (of_c != 0 && !holds(c, *c_layout)))
    return kInvalid;
  const Matrix added{c, *c_layout, false};
  const void* const bias = adds_bias ? description->bias : nullptr;
  fake_cuda_give(stream, [=, to = *d_layout] {
    ++products;
    for (int64_t matrix = 0; matrix < to.matrices; ++matrix) {
      for (int64_t column = 0; column < right.columns(); ++column) {
        for (int64_t row = 0; row < left.rows(); ++row) {
          float sum = 0;
          for (int64_t k = 0; k < left.columns(); ++k) sum += left.at(matrix, row, k) * right.at(matrix, k, column);
          sum *= scale;
          if (of_c != 0) sum += of_c * added.at(matrix, row, column);
          if (bias != nullptr) sum += load(to.type, bias, row);
          if (is_relu && !(sum > 0)) sum = 0;
          store(to.type, d, matrix * to.next + column * to.leading + row, sum);
        }
      }
    }
  });
  return 0;
}

}  // extern "C"
