#include "cudnn.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "aspen_jax/engine/made_once.h"

namespace aspen::cuda {
namespace {

// Elements are aligned so far at least, in bytes: Python sees to it.
constexpr int64_t kAlignment = 16;
constexpr int64_t kOutput = 1000, kFirstVirtual = 2000;
// So many ways are asked for, the fastest first as the library thinks.
constexpr int64_t kMostConfigs = 64;

int data_type_of(int32_t type) { return type == kFloat32 ? kDataFloat32 : type == kBFloat16 ? kDataBFloat16 : kDataFloat16; }

int mode_of(int32_t kind) {
  switch (kind) {
    case kAdd:
      return kPointwiseAdd;
    case kSubtract:
      return kPointwiseSubtract;
    case kMultiply:
      return kPointwiseMultiply;
    default:
      return kPointwiseRelu;
  }
}

Cudnn load() {
  const OpenedLibrary opened("cuDNN", {"libcudnn.so.9"});
  Cudnn library;
#define ASPEN_CUDNN_FUNCTION(name, parameters) opened.find(library.name, #name);
#include "cudnn_functions.inc"
#undef ASPEN_CUDNN_FUNCTION
  return library;
}

}  // namespace

const Cudnn& Cudnn::get() {
  static constinit MadeOnce<Cudnn> library;
  return library.get(load);
}

void Cudnn::check(CudnnStatus status, const char* call) { check_status(status, call, "cuDNN"); }

void check_convolution(const LibraryConvolution& what) {
  const auto is_type = [](int32_t type) { return type >= kFloat32 && type <= kFloat16; };
  bool is_right = is_type(what.type) && what.num_operands >= 0 && what.num_operands <= kMostOperands && what.num_steps >= 0 &&
                  what.num_steps <= kMostSteps;
  for (int32_t number = 0; is_right && number < what.num_operands; ++number) is_right = is_type(what.operands[number].type);
  for (int32_t number = 0; is_right && number < what.num_steps; ++number) {
    const LibraryStep& step = what.steps[number];
    const int32_t known = 1 + what.num_operands + number;
    is_right = step.kind >= kAdd && step.kind <= kRelu && step.first >= 0 && step.first < known && step.second < known &&
               (step.kind == kRelu ? step.second == -1 : step.second >= 0);
  }
  if (!is_right) {
    throw DeviceError(
        "the code names a convolution for a library that is none; install one build of aspen_jax, and trace the "
        "function again");
  }
}

ConvolutionCall::ConvolutionCall(CudnnHandle handle, const LibraryConvolution& convolution)
    : library_(Cudnn::get()), handle_(handle), what_(convolution) {
  build_graph();
  find_plan();
}

ConvolutionCall::Descriptor ConvolutionCall::create(int kind) const {
  CudnnDescriptor made = nullptr;
  Cudnn::check(library_.cudnnBackendCreateDescriptor(kind, &made), "cudnnBackendCreateDescriptor");
  return Descriptor(made, library_.cudnnBackendDestroyDescriptor);
}

CudnnDescriptor ConvolutionCall::kept(Descriptor descriptor) {
  kept_.push_back(std::move(descriptor));
  return kept_.back().get();
}

void ConvolutionCall::finalize(const Descriptor& descriptor, const char* what) const {
  Cudnn::check(library_.cudnnBackendFinalize(descriptor.get()), (std::string("cudnnBackendFinalize of ") + what).c_str());
}

template <class T>
void ConvolutionCall::set(const Descriptor& descriptor, int name, int type, std::span<const T> elements) const {
  const CudnnStatus status =
      library_.cudnnBackendSetAttribute(descriptor.get(), name, type, static_cast<int64_t>(elements.size()), elements.data());
  if (status != 0) Cudnn::check(status, ("cudnnBackendSetAttribute of " + std::to_string(name)).c_str());
}

template <class T>
void ConvolutionCall::set(const Descriptor& descriptor, int name, int type, const T& element) const {
  set(descriptor, name, type, std::span<const T>(&element, 1));
}

CudnnDescriptor ConvolutionCall::tensor(int64_t number, bool is_virtual, int32_t type, std::span<const int64_t> extents,
                                        std::span<const int64_t> strides) {
  Descriptor made = create(kTensor);
  set(made, kTensorNumber, kOfInt64, number);
  set(made, kTensorType, kOfDataType, data_type_of(type));
  set(made, kTensorExtents, kOfInt64, extents);
  set(made, kTensorStrides, kOfInt64, strides);
  set(made, kTensorAlignment, kOfInt64, kAlignment);
  if (is_virtual) {
    set(made, kTensorIsVirtual, kOfBoolean, true);
  } else {
    numbers_.push_back(number);
  }
  finalize(made, "a tensor");
  return kept(std::move(made));
}

// Extents are those of NCHW, whatever lies how.
CudnnDescriptor ConvolutionCall::like_the_result(int64_t number, bool is_virtual, int32_t type) {
  const int64_t extents[] = {what_.images, what_.outputs, what_.result_height, what_.result_width};
  const int64_t line = what_.result_width * what_.outputs;
  const int64_t strides[] = {what_.result_height * line, 1, line, what_.outputs};
  return tensor(number, is_virtual, type, extents, strides);
}

CudnnDescriptor ConvolutionCall::describe_convolution() {
  Descriptor made = create(kConvolution);
  constexpr int64_t kDimensions = 2;
  set(made, kConvolutionType, kOfDataType, kDataFloat32);
  set(made, kConvolutionMode, kOfConvolutionMode, kCrossCorrelation);
  set(made, kConvolutionDimensions, kOfInt64, kDimensions);
  set(made, kConvolutionDilation, kOfInt64, std::span<const int64_t>(what_.dilation));
  set(made, kConvolutionStrides, kOfInt64, std::span<const int64_t>(what_.strides));
  set(made, kConvolutionBefore, kOfInt64, std::span<const int64_t>(what_.before));
  set(made, kConvolutionAfter, kOfInt64, std::span<const int64_t>(what_.after));
  finalize(made, "a convolution");
  return kept(std::move(made));
}

CudnnDescriptor ConvolutionCall::add_convolution(CudnnDescriptor result) {
  const int64_t line = what_.width * what_.channels, row = what_.kernel_width * what_.channels;
  const int64_t extents[] = {what_.images, what_.channels, what_.height, what_.width};
  const int64_t strides[] = {what_.height * line, 1, line, what_.channels};
  const int64_t of_weights[] = {what_.outputs, what_.channels, what_.kernel_height, what_.kernel_width};
  const int64_t strides_of_weights[] = {what_.kernel_height * row, 1, row, what_.channels};
  const CudnnDescriptor images = tensor(0, false, what_.type, extents, strides);
  const CudnnDescriptor weights = tensor(1, false, what_.type, of_weights, strides_of_weights);
  const CudnnDescriptor convolution = describe_convolution();
  Descriptor made = create(kConvolutionForward);
  set(made, kForwardConvolution, kOfDescriptor, convolution);
  set(made, kForwardImages, kOfDescriptor, images);
  set(made, kForwardWeights, kOfDescriptor, weights);
  set(made, kForwardResult, kOfDescriptor, result);
  set(made, kForwardAlpha, kOfFloat, 1.0f);
  set(made, kForwardBeta, kOfFloat, 0.0f);
  finalize(made, "a convolution's operation");
  return kept(std::move(made));
}

CudnnDescriptor ConvolutionCall::add_step(const LibraryStep& step, std::span<const CudnnDescriptor> registers,
                                          CudnnDescriptor result) {
  Descriptor mode = create(kPointwise);
  set(mode, kPointwiseMode, kOfPointwiseMode, mode_of(step.kind));
  set(mode, kPointwisePrecision, kOfDataType, kDataFloat32);
  finalize(mode, "a step's mode");
  Descriptor made = create(kPointwiseOperation);
  set(made, kOperationPointwise, kOfDescriptor, kept(std::move(mode)));
  set(made, kOperationFirst, kOfDescriptor, registers[static_cast<size_t>(step.first)]);
  if (step.second >= 0) set(made, kOperationSecond, kOfDescriptor, registers[static_cast<size_t>(step.second)]);
  set(made, kOperationResult, kOfDescriptor, result);
  finalize(made, "a step");
  return kept(std::move(made));
}

void ConvolutionCall::build_graph() {
  const auto result = [&](int32_t step) {  // step -1 is the convolution
    const bool is_last = step + 1 == what_.num_steps;
    return is_last ? like_the_result(kOutput, false, what_.type) : like_the_result(kFirstVirtual + step, true, kFloat32);
  };
  std::vector<CudnnDescriptor> registers{result(-1)};
  std::vector<CudnnDescriptor> operations{add_convolution(registers[0])};
  for (const LibraryOperand& operand : std::span(what_.operands).first(static_cast<size_t>(what_.num_operands))) {
    const int64_t extents[] = {1, what_.outputs, 1, 1}, strides[] = {what_.outputs, 1, what_.outputs, what_.outputs};
    registers.push_back(operand.is_vector != 0 ? tensor(operand.input, false, operand.type, extents, strides)
                                               : like_the_result(operand.input, false, operand.type));
  }
  for (int32_t step = 0; step < what_.num_steps; ++step) {
    const CudnnDescriptor made = result(step);
    operations.push_back(add_step(what_.steps[step], registers, made));
    registers.push_back(made);
  }
  Descriptor graph = create(kOperationGraph);
  set(graph, kGraphHandle, kOfHandle, handle_);
  set(graph, kGraphOperations, kOfDescriptor, std::span<const CudnnDescriptor>(operations));
  finalize(graph, "a graph of operations");
  graph_ = kept(std::move(graph));
}

// Whether sums always have the same order, in float32: what else an engine does, it notes.
bool ConvolutionCall::keeps_order(CudnnDescriptor config) const {
  const Descriptor engine = create(kEngine);
  CudnnDescriptor found = engine.get();
  int64_t count = 0;
  Cudnn::check(library_.cudnnBackendGetAttribute(config, kConfigEngine, kOfDescriptor, 1, &count, &found),
               "cudnnBackendGetAttribute");
  std::array<int, kMostNotes> notes{};
  Cudnn::check(library_.cudnnBackendGetAttribute(found, kEngineNotes, kOfNumericalNote, kMostNotes, &count, notes.data()),
               "cudnnBackendGetAttribute");
  const auto own = std::span(notes).first(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMostNotes)));
  return std::ranges::all_of(own, [](int note) { return note == kNoteTensorCores || note == kNoteKeepsNan; });
}

void ConvolutionCall::find_plan() {
  const Descriptor heuristics = create(kEngineHeuristics);
  set(heuristics, kHeuristicsGraph, kOfDescriptor, graph_);
  set(heuristics, kHeuristicsMode, kOfHeuristicsMode, kHeuristicsA);
  finalize(heuristics, "heuristics");
  std::vector<Descriptor> configs;
  std::vector<CudnnDescriptor> found;
  for (int64_t i = 0; i < kMostConfigs; ++i) found.push_back(configs.emplace_back(create(kEngineConfig)).get());
  int64_t count = 0;
  Cudnn::check(
      library_.cudnnBackendGetAttribute(heuristics.get(), kHeuristicsResults, kOfDescriptor, kMostConfigs, &count, found.data()),
      "cudnnBackendGetAttribute");
  for (int64_t i = 0; i < std::min(count, kMostConfigs); ++i) {
    const auto number = static_cast<size_t>(i);
    if (!keeps_order(found[number])) continue;
    Descriptor plan = create(kExecutionPlan);
    set(plan, kPlanHandle, kOfHandle, handle_);
    set(plan, kPlanConfig, kOfDescriptor, found[number]);
    if (library_.cudnnBackendFinalize(plan.get()) != 0) continue;  // others may do on this GPU
    int64_t bytes = 0, elements = 0;
    const CudnnStatus status = library_.cudnnBackendGetAttribute(plan.get(), kPlanWorkspace, kOfInt64, 1, &elements, &bytes);
    if (status != 0 || elements != 1 || bytes != 0) continue;
    kept_.push_back(std::move(configs[number]));
    plan_ = kept(std::move(plan));
    return;
  }
  throw DeviceError("cuDNN has no way to compute this convolution without a workspace; tune again, which refuses such ones");
}

void ConvolutionCall::give(Stream stream, std::span<const DevicePointer> addresses) {
  std::vector<void*> pointers;
  for (const int64_t number : numbers_) {
    pointers.push_back(reinterpret_cast<void*>(number == kOutput ? addresses.back() : addresses[static_cast<size_t>(number)]));
  }
  const Descriptor pack = create(kVariantPack);
  void* const no_workspace = nullptr;
  set(pack, kPackNumbers, kOfInt64, std::span<const int64_t>(numbers_));
  set(pack, kPackPointers, kOfPointer, std::span<void* const>(pointers));
  set(pack, kPackWorkspace, kOfPointer, no_workspace);
  finalize(pack, "addresses");
  Cudnn::check(library_.cudnnSetStream(handle_, stream), "cudnnSetStream");
  Cudnn::check(library_.cudnnBackendExecute(handle_, plan_, pack.get()), "cudnnBackendExecute");
}

}  // namespace aspen::cuda
