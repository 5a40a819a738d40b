// cuDNN played by the host: a libcudnn.so.9 whose graphs of operations run when the fake of CUDA's driver serves streams.
//
// It takes apart what the engine says of a convolution and its steps, refuses what cuDNN's manual forbids, and counts what is
// made and not destroyed. Of the ways that it offers, the engine may take the last alone.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda/cudnn.h"
#include "tests/targets/cuda/fake_library.h"

using namespace aspen::cuda;

struct cudnnContext {
  Stream stream;
};

namespace {

struct Graph;

constexpr CudnnStatus kBad = 2000, kNotSupported = 3000;
int live = 0;
int convolutions = 0;     // that have run
CudnnStatus failure = 0;  // of what is executed from now on
int offered = 4;          // ways from now on, of kWays

// A descriptor: its attributes as they were set, elements of 8 bytes at most.
struct Made {
  struct Attribute {
    int type;
    std::vector<uint64_t> elements;
  };
  int kind;
  bool is_final = false;
  std::map<int, Attribute> attributes;
  int way = 0;                         // of configs and engines
  std::shared_ptr<const Graph> graph;  // of configs

  template <class T>
  std::vector<T> all(int name) const {
    std::vector<T> found;
    for (const uint64_t element : attributes.at(name).elements) {
      T value;
      std::memcpy(&value, &element, sizeof value);
      found.push_back(value);
    }
    return found;
  }
  template <class T>
  T one(int name) const {
    return all<T>(name).at(0);
  }
  const Made& at(int name) const { return *one<const Made*>(name); }
};

// Whether an attribute of a kind exists, with its type and how many elements it may have.
struct Known {
  int kind, name, type;
  int64_t least, most;
  bool is_needed;
};
constexpr Known kKnown[] = {
    {kTensor, kTensorNumber, kOfInt64, 1, 1, true},
    {kTensor, kTensorType, kOfDataType, 1, 1, true},
    {kTensor, kTensorExtents, kOfInt64, 4, 4, true},
    {kTensor, kTensorStrides, kOfInt64, 4, 4, true},
    {kTensor, kTensorAlignment, kOfInt64, 1, 1, true},
    {kTensor, kTensorIsVirtual, kOfBoolean, 1, 1, false},
    {kConvolution, kConvolutionType, kOfDataType, 1, 1, true},
    {kConvolution, kConvolutionMode, kOfConvolutionMode, 1, 1, true},
    {kConvolution, kConvolutionDimensions, kOfInt64, 1, 1, true},
    {kConvolution, kConvolutionDilation, kOfInt64, 2, 2, true},
    {kConvolution, kConvolutionStrides, kOfInt64, 2, 2, true},
    {kConvolution, kConvolutionBefore, kOfInt64, 2, 2, true},
    {kConvolution, kConvolutionAfter, kOfInt64, 2, 2, true},
    {kConvolutionForward, kForwardConvolution, kOfDescriptor, 1, 1, true},
    {kConvolutionForward, kForwardImages, kOfDescriptor, 1, 1, true},
    {kConvolutionForward, kForwardWeights, kOfDescriptor, 1, 1, true},
    {kConvolutionForward, kForwardResult, kOfDescriptor, 1, 1, true},
    {kConvolutionForward, kForwardAlpha, kOfFloat, 1, 1, true},
    {kConvolutionForward, kForwardBeta, kOfFloat, 1, 1, true},
    {kPointwise, kPointwiseMode, kOfPointwiseMode, 1, 1, true},
    {kPointwise, kPointwisePrecision, kOfDataType, 1, 1, true},
    {kPointwiseOperation, kOperationPointwise, kOfDescriptor, 1, 1, true},
    {kPointwiseOperation, kOperationFirst, kOfDescriptor, 1, 1, true},
    {kPointwiseOperation, kOperationSecond, kOfDescriptor, 1, 1, false},
    {kPointwiseOperation, kOperationResult, kOfDescriptor, 1, 1, true},
    {kOperationGraph, kGraphHandle, kOfHandle, 1, 1, true},
    {kOperationGraph, kGraphOperations, kOfDescriptor, 1, 50, true},
    {kEngineHeuristics, kHeuristicsGraph, kOfDescriptor, 1, 1, true},
    {kEngineHeuristics, kHeuristicsMode, kOfHeuristicsMode, 1, 1, true},
    {kExecutionPlan, kPlanHandle, kOfHandle, 1, 1, true},
    {kExecutionPlan, kPlanConfig, kOfDescriptor, 1, 1, true},
    {kVariantPack, kPackNumbers, kOfInt64, 1, 50, true},
    {kVariantPack, kPackPointers, kOfPointer, 1, 50, true},
    {kVariantPack, kPackWorkspace, kOfPointer, 1, 1, true},
};

size_t size_of(int type) {
  return type == kOfBoolean ? 1 : type == kOfInt64 || type == kOfDescriptor || type == kOfHandle || type == kOfPointer ? 8 : 4;
}

Made* made(CudnnDescriptor descriptor) { return static_cast<Made*>(descriptor); }

ElementType element(int type) { return type == kDataFloat32 ? kFloat32 : type == kDataBFloat16 ? kBFloat16 : kFloat16; }
float load(int type, const void* data, int64_t index) { return load_element(element(type), data, index); }
void store(int type, void* data, int64_t index, float value) { store_element(element(type), data, index, value); }

using Four = std::array<int64_t, 4>;

// A tensor and where it is, NCHW.
struct Tensor {
  int64_t number;
  int type;
  Four extents, strides;
  bool is_virtual;
  std::shared_ptr<std::vector<float>> own;  // of a virtual one
  void* data = nullptr;

  explicit Tensor(const Made& from)
      : number(from.one<int64_t>(kTensorNumber)),
        type(from.one<int>(kTensorType)),
        is_virtual(from.attributes.contains(kTensorIsVirtual) && from.one<bool>(kTensorIsVirtual)) {
    std::ranges::copy(from.all<int64_t>(kTensorExtents), extents.begin());
    std::ranges::copy(from.all<int64_t>(kTensorStrides), strides.begin());
  }
  int64_t last() const {
    int64_t place = 0;
    for (int d = 0; d < 4; ++d) place += (extents[d] - 1) * strides[d];
    return place;
  }
  // At most as large as another, whose coordinates these are.
  int64_t place(const Four& at) const {
    int64_t place = 0;
    for (int d = 0; d < 4; ++d) place += std::min(at[d], extents[d] - 1) * strides[d];
    return place;
  }
  float at(const Four& where) const {
    return is_virtual ? (*own)[static_cast<size_t>(place(where))] : load(type, data, place(where));
  }
  void put(const Four& where, float value) const {
    if (is_virtual) {
      (*own)[static_cast<size_t>(place(where))] = value;
    } else {
      store(type, data, place(where), value);
    }
  }
  template <class Visit>
  void each(const Visit& visit) const {
    Four at;
    for (at[0] = 0; at[0] < extents[0]; ++at[0])
      for (at[1] = 0; at[1] < extents[1]; ++at[1])
        for (at[2] = 0; at[2] < extents[2]; ++at[2])
          for (at[3] = 0; at[3] < extents[3]; ++at[3]) visit(at);
  }
};

// Operations that are checked, and run one after the other.
struct Graph {
  std::map<int64_t, Tensor> tensors;
  struct Step {
    int mode;                       // -1: the convolution
    int64_t first, second, result;  // the second one may be missing: -1
    std::vector<int64_t> strides, dilation, before, after;
  };
  std::vector<Step> steps;

  bool are_alike = true;  // tensors of one number

  int64_t add(const Made& tensor) {
    const Tensor made(tensor);
    const auto [place, is_new] = tensors.emplace(made.number, made);
    are_alike &= is_new || (place->second.extents == made.extents && place->second.strides == made.strides &&
                            place->second.type == made.type && place->second.is_virtual == made.is_virtual);
    return made.number;
  }
  bool is_right(const Step& step) const {
    const Tensor &first = tensors.at(step.first), &result = tensors.at(step.result);
    if (step.mode >= 0) {
      if (first.extents != result.extents) return false;
      if ((step.mode == kPointwiseRelu) != (step.second < 0)) return false;
      if (step.second < 0) return true;
      const Tensor& second = tensors.at(step.second);
      for (int d = 0; d < 4; ++d) {
        if (second.extents[d] != 1 && second.extents[d] != result.extents[d]) return false;
      }
      return step.mode == kPointwiseAdd || step.mode == kPointwiseMultiply || step.mode == kPointwiseSubtract;
    }
    const Tensor& weights = tensors.at(step.second);
    for (size_t d = 0; d < 2; ++d) {
      const int64_t window = step.dilation[d] * (weights.extents[2 + d] - 1) + 1;
      const int64_t padded = first.extents[2 + d] + step.before[d] + step.after[d];
      if (result.extents[2 + d] != (padded - window) / step.strides[d] + 1) return false;
    }
    // Fusion wants channels adjacent, as cuDNN's does.
    return first.type == weights.type && first.strides[1] == 1 && weights.strides[1] == 1 && result.strides[1] == 1 &&
           first.extents[1] == weights.extents[1] && weights.extents[0] == result.extents[1] &&
           first.extents[0] == result.extents[0];
  }
  void run(const Step& step) const {
    const Tensor &first = tensors.at(step.first), &result = tensors.at(step.result);
    if (step.mode < 0) {
      const Tensor& weights = tensors.at(step.second);
      result.each([&](const Four& at) {
        float sum = 0;
        for (int64_t c = 0; c < weights.extents[1]; ++c)
          for (int64_t y = 0; y < weights.extents[2]; ++y)
            for (int64_t x = 0; x < weights.extents[3]; ++x) {
              const int64_t line = at[2] * step.strides[0] + y * step.dilation[0] - step.before[0];
              const int64_t pixel = at[3] * step.strides[1] + x * step.dilation[1] - step.before[1];
              if (line < 0 || line >= first.extents[2] || pixel < 0 || pixel >= first.extents[3]) continue;
              sum += first.at({at[0], c, line, pixel}) * weights.at({at[1], c, y, x});
            }
        result.put(at, sum);
      });
      return;
    }
    result.each([&](const Four& at) {
      const float a = first.at(at), b = step.second < 0 ? 0 : tensors.at(step.second).at(at);
      result.put(at, step.mode == kPointwiseAdd        ? a + b
                     : step.mode == kPointwiseMultiply ? a * b
                     : step.mode == kPointwiseSubtract ? a - b
                                                       : (a > 0 ? a : 0));
    });
  }
};

Graph graph_of(const Made& from) {
  Graph graph;
  for (const Made* const operation : from.all<const Made*>(kGraphOperations)) {
    if (operation->kind == kConvolutionForward) {
      const Made& what = operation->at(kForwardConvolution);
      graph.steps.push_back({-1, graph.add(operation->at(kForwardImages)), graph.add(operation->at(kForwardWeights)),
                             graph.add(operation->at(kForwardResult)), what.all<int64_t>(kConvolutionStrides),
                             what.all<int64_t>(kConvolutionDilation), what.all<int64_t>(kConvolutionBefore),
                             what.all<int64_t>(kConvolutionAfter)});
    } else {
      const int64_t second = operation->attributes.contains(kOperationSecond) ? graph.add(operation->at(kOperationSecond)) : -1;
      graph.steps.push_back({operation->at(kOperationPointwise).one<int>(kPointwiseMode),
                             graph.add(operation->at(kOperationFirst)),
                             second,
                             graph.add(operation->at(kOperationResult)),
                             {},
                             {},
                             {},
                             {}});
    }
  }
  return graph;
}

bool are_final(const Made& what) {
  for (const auto& [name, attribute] : what.attributes) {
    if (attribute.type != kOfDescriptor) continue;
    for (const Made* const other : what.all<const Made*>(name)) {
      if (other == nullptr || !other->is_final) return false;
    }
  }
  return true;
}

// Ways that an engine may offer: one of changing order, one with a workspace, one that no GPU of this kind has, and a good one.
constexpr int kReordered = 0, kWithWorkspace = 1, kUnsupported = 2, kGood = 3, kWays = 4;

}  // namespace

extern "C" {

// For tests.
int fake_cudnn_live() { return live; }
int fake_cudnn_convolutions() { return convolutions; }
void fake_cudnn_fail(int status) { failure = status; }
void fake_cudnn_offer(int ways) { offered = ways; }

CudnnStatus cudnnCreate(CudnnHandle* handle) {
  *handle = new cudnnContext{};
  ++live;
  return 0;
}
CudnnStatus cudnnDestroy(CudnnHandle handle) {
  delete handle;
  --live;
  return 0;
}
CudnnStatus cudnnSetStream(CudnnHandle handle, Stream stream) {
  handle->stream = stream;
  return 0;
}
CudnnStatus cudnnBackendCreateDescriptor(int kind, CudnnDescriptor* descriptor) {
  *descriptor = new Made{kind, false, {}, 0, nullptr};
  ++live;
  return 0;
}
CudnnStatus cudnnBackendDestroyDescriptor(CudnnDescriptor descriptor) {
  delete made(descriptor);
  --live;
  return 0;
}
CudnnStatus cudnnBackendSetAttribute(CudnnDescriptor descriptor, int name, int type, int64_t count, const void* elements) {
  Made& what = *made(descriptor);
  const auto fits = [&](const Known& known) {
    return known.kind == what.kind && known.name == name && known.type == type && count >= known.least && count <= known.most;
  };
  if (what.is_final || std::ranges::none_of(kKnown, fits)) return kBad;
  Made::Attribute attribute{type, {}};
  for (int64_t i = 0; i < count; ++i) {
    uint64_t element = 0;
    std::memcpy(&element, static_cast<const char*>(elements) + static_cast<size_t>(i) * size_of(type), size_of(type));
    attribute.elements.push_back(element);
  }
  what.attributes[name] = attribute;
  return 0;
}
CudnnStatus cudnnBackendFinalize(CudnnDescriptor descriptor) {
  Made& what = *made(descriptor);
  for (const Known& known : kKnown) {
    if (known.kind == what.kind && known.is_needed && !what.attributes.contains(known.name)) return kBad;
  }
  if (what.is_final || !are_final(what)) return kBad;
  if (what.kind == kOperationGraph) {
    const Graph graph = graph_of(what);
    if (!graph.are_alike || !std::ranges::all_of(graph.steps, [&](const auto& step) { return graph.is_right(step); }))
      return kNotSupported;
  }
  if (what.kind == kExecutionPlan && what.at(kPlanConfig).way == kUnsupported) return kNotSupported;
  what.is_final = true;
  return 0;
}
CudnnStatus cudnnBackendGetAttribute(CudnnDescriptor const descriptor, int name, int type, int64_t room, int64_t* count,
                                     void* elements) {
  const Made& what = *made(descriptor);
  if (what.kind == kEngineHeuristics && name == kHeuristicsResults && type == kOfDescriptor) {
    *count = std::min(offered, kWays);
    for (int way = 0; way < std::min<int64_t>(room, *count); ++way) {
      Made& config = *made(static_cast<CudnnDescriptor*>(elements)[way]);
      if (config.kind != kEngineConfig) return kBad;
      config.way = way;
      config.graph = std::make_shared<const Graph>(graph_of(what.at(kHeuristicsGraph)));
      config.is_final = true;
    }
    return 0;
  }
  if (what.kind == kEngineConfig && name == kConfigEngine && type == kOfDescriptor && room == 1) {
    Made& engine = *made(*static_cast<CudnnDescriptor*>(elements));
    if (engine.kind != kEngine) return kBad;
    engine.way = what.way;
    *count = 1;
    return 0;
  }
  if (what.kind == kEngine && name == kEngineNotes && type == kOfNumericalNote && room >= 2) {
    auto* const notes = static_cast<int*>(elements);
    notes[0] = kNoteTensorCores;
    notes[1] = 4;  // not always the same
    *count = what.way == kReordered ? 2 : 1;
    return 0;
  }
  if (what.kind == kExecutionPlan && name == kPlanWorkspace && type == kOfInt64 && room == 1) {
    *static_cast<int64_t*>(elements) = what.at(kPlanConfig).way == kWithWorkspace ? 131 : 0;
    *count = 1;
    return 0;
  }
  return kBad;
}
CudnnStatus cudnnBackendExecute(CudnnHandle handle, CudnnDescriptor plan, CudnnDescriptor pack) {
  if (failure != 0) return failure;
  if (!made(plan)->is_final || !made(pack)->is_final || made(plan)->at(kPlanConfig).way != kGood) return kBad;
  Graph graph = *made(plan)->at(kPlanConfig).graph;
  const auto numbers = made(pack)->all<int64_t>(kPackNumbers);
  const auto pointers = made(pack)->all<void*>(kPackPointers);
  if (numbers.size() != pointers.size() || made(pack)->one<void*>(kPackWorkspace) != nullptr) return kBad;
  for (auto& [number, tensor] : graph.tensors) {
    if (tensor.is_virtual) {
      tensor.own = std::make_shared<std::vector<float>>(static_cast<size_t>(tensor.last() + 1));
      continue;
    }
    const auto found = std::ranges::find(numbers, number);
    if (found == numbers.end()) return kBad;
    tensor.data = pointers[static_cast<size_t>(found - numbers.begin())];
    const size_t bytes = static_cast<size_t>(tensor.last() + 1) * (tensor.type == kDataFloat32 ? 4 : 2);
    const bool is_aligned = reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
    if (!is_aligned || !fake_cuda_has(reinterpret_cast<DevicePointer>(tensor.data), bytes)) return kBad;
  }
  fake_cuda_give(handle->stream, [graph] {
    ++convolutions;
    for (const Graph::Step& step : graph.steps) graph.run(step);
  });
  return 0;
}

}  // extern "C"
