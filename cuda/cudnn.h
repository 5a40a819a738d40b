// Convolutions by NVIDIA's cuDNN with what follows them, as graphs of operations: jax[cuda13] brings it.
//
// The declarations repeat those of cudnn_graph.h, whose types and numbers are part of its binary interface. They hold for
// cuDNN 9.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "driver.h"
#include "kernels/kernel_shape.h"
#include "library_call.h"

// As in cudnn_graph.h, so that its type and ours are the same.
struct cudnnContext;

namespace aspen::cuda {

using CudnnStatus = int;  // cudnnStatus_t
using CudnnHandle = cudnnContext*;
using CudnnDescriptor = void*;  // cudnnBackendDescriptor_t

// cudnnBackendDescriptorType_t.
enum CudnnKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
};

// cudnnBackendAttributeType_t.
enum CudnnType : int {
  kOfHandle = 0,
  kOfDataType = 1,
  kOfBoolean = 2,
  kOfInt64 = 3,
  kOfFloat = 4,
  kOfPointer = 6,
  kOfConvolutionMode = 7,
  kOfHeuristicsMode = 8,
  kOfNumericalNote = 11,
  kOfPointwiseMode = 14,
  kOfDescriptor = 15,
};

// cudnnBackendAttributeName_t.
enum CudnnAttribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kConvolutionType = 100,
  kConvolutionMode = 101,
  kConvolutionDilation = 102,
  kConvolutionStrides = 103,
  kConvolutionAfter = 104,
  kConvolutionBefore = 105,
  kConvolutionDimensions = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardWeights = 703,
  kForwardImages = 704,
  kForwardResult = 705,
  kOperationPointwise = 750,
  kOperationFirst = 751,
  kOperationSecond = 752,
  kOperationResult = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorExtents = 902,
  kTensorStrides = 903,
  kTensorNumber = 906,
  kTensorIsVirtual = 907,
  kPackNumbers = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
};

// cudnnDataType_t, cudnnConvolutionMode_t, cudnnPointwiseMode_t, cudnnBackendHeurMode_t, cudnnBackendNumericalNote_t.
inline constexpr int kDataFloat32 = 0, kDataFloat16 = 2, kDataBFloat16 = 9;
inline constexpr int kCrossCorrelation = 1;
inline constexpr int kPointwiseAdd = 0, kPointwiseMultiply = 1, kPointwiseSubtract = 9, kPointwiseRelu = 100;
inline constexpr int kHeuristicsA = 3;
inline constexpr int kNoteTensorCores = 0, kNoteKeepsNan = 9, kMostNotes = 16;

struct Cudnn {
#define ASPEN_CUDNN_FUNCTION(name, parameters) CudnnStatus(*name) parameters = nullptr;
#include "cudnn_functions.inc"
#undef ASPEN_CUDNN_FUNCTION

  // Throws DeviceError where there is none.
  static const Cudnn& get();
  // Throws DeviceError unless the status is 0; `call` is what failed.
  static void check(CudnnStatus status, const char* call);
};

// Throws DeviceError unless all numbers are among those that the struct has room and names for.
void check_convolution(const LibraryConvolution& what);

// One convolution, which has been checked. Throws DeviceError.
class ConvolutionCall final : public LibraryCall {
 public:
  ConvolutionCall(CudnnHandle handle, const LibraryConvolution& convolution);
  void give(Stream stream, std::span<const DevicePointer> addresses) override;

 private:
  using Descriptor = std::unique_ptr<void, CudnnStatus (*)(CudnnDescriptor)>;

  Descriptor create(int kind) const;
  // Of descriptors that others name: they live as long as the call.
  CudnnDescriptor kept(Descriptor descriptor);
  void finalize(const Descriptor& descriptor, const char* what) const;
  template <class T>
  void set(const Descriptor& descriptor, int name, int type, std::span<const T> elements) const;
  template <class T>
  void set(const Descriptor& descriptor, int name, int type, const T& element) const;

  // A tensor in memory, with the number of an input or kOutput; or a virtual one.
  CudnnDescriptor tensor(int64_t number, bool is_virtual, int32_t type, std::span<const int64_t> extents,
                         std::span<const int64_t> strides);
  CudnnDescriptor like_the_result(int64_t number, bool is_virtual, int32_t type);
  CudnnDescriptor describe_convolution();
  CudnnDescriptor add_convolution(CudnnDescriptor result);
  CudnnDescriptor add_step(const LibraryStep& step, std::span<const CudnnDescriptor> registers, CudnnDescriptor result);
  void build_graph();
  void find_plan();
  bool keeps_order(CudnnDescriptor config) const;

  const Cudnn& library_;
  const CudnnHandle handle_;
  const LibraryConvolution what_;
  std::vector<Descriptor> kept_;
  CudnnDescriptor graph_ = nullptr, plan_ = nullptr;
  std::vector<int64_t> numbers_;  // of the tensors in memory: an input's, or kOutput
};

}  // namespace aspen::cuda
