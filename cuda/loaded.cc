#include "loaded.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "aspen_jax/engine/failure.h"
#include "executable.h"

namespace aspen::cuda {
namespace {

// More than this of shared memory must be asked for.
constexpr int kFreeSharedBytes = 48 << 10;

constexpr const char* kProgrammaticVariable = "ASPEN_CUDA_PROGRAMMATIC";

bool wants_programmatic() {
  const char* const text = std::getenv(kProgrammaticVariable);
  const std::string wanted = text == nullptr ? "on" : text;
  if (wanted == "on" || wanted == "off") return wanted == "on";
  throw DeviceError(std::string(kProgrammaticVariable) + "='" + wanted + "' is no choice; set it to 'on' or 'off'");
}

}  // namespace

// Schedules begin with the caller's stream.
class StreamLauncher final : public Launcher {
 public:
  StreamLauncher(Loaded& loaded, Stream stream, std::span<const DevicePointer> addresses)
      : loaded_(loaded), stream_(stream), addresses_(addresses) {}

  const char* launch(uint32_t stream, uint32_t launch) noexcept override {
    if (loaded_.is_by_library(launch)) return give_to_library(stream, launch);
    Loaded::Arguments arguments = loaded_.arguments(launch, addresses_);
    const KernelNodeParams params = loaded_.node_params(launch, arguments);
    return name(loaded_.driver_.cuLaunchKernel(params.function, params.grid_x, params.grid_y, 1, params.block_x, 1, 1,
                                               params.shared_bytes, at(stream), params.arguments, nullptr));
  }
  const char* record(uint32_t stream, uint32_t event) noexcept override {
    return name(loaded_.driver_.cuEventRecord(loaded_.events_[event], at(stream)));
  }
  const char* wait(uint32_t stream, uint32_t event) noexcept override {
    return name(loaded_.driver_.cuStreamWaitEvent(at(stream), loaded_.events_[event], 0));
  }
  Result failure() const { return failure_; }
  // Of a library; empty where it has not failed.
  const std::string& failure_of_library() const { return failure_of_library_.text(); }

 private:
  const char* give_to_library(uint32_t stream, uint32_t launch) noexcept {
    try {
      loaded_.give_to_library(at(stream), launch, addresses_);
      return nullptr;
    } catch (...) {
      failure_of_library_ = Failure::of_exception();
      return failure_of_library().c_str();
    }
  }

  Stream at(uint32_t stream) const { return stream == 0 ? stream_ : loaded_.streams_[stream - 1]; }
  const char* name(Result result) {
    if (result == kSuccess) return nullptr;
    if (failure_ == kSuccess) failure_ = result;
    return loaded_.driver_.name_of(result);
  }

  Loaded& loaded_;
  const Stream stream_;
  const std::span<const DevicePointer> addresses_;
  Result failure_ = kSuccess;
  Failure failure_of_library_;
};

Loaded::Loaded(const Driver& driver, const Executable& executable, Context context)
    : driver_(driver), executable_(executable), context_(context) {
  try {
    driver_.check(driver_.cuModuleLoadData(&module_, executable_.code().image.data()), "cuModuleLoadData");
    find_kernels();
    check_launches();
    take_room();
    copy_boxes();
    take_workspace();
    is_programmatic_ = wants_programmatic() && driver_.cuGraphAddDependencies != nullptr && kernels_wait();
    instances_.reserve(kMostInstances);
    streams_.resize(executable_.schedule().num_streams - 1);
    for (Stream& stream : streams_) driver_.check(driver_.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
    events_.resize(executable_.schedule().num_events);
    for (Event& event : events_) driver_.check(driver_.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
  } catch (...) {
    release();
    throw;
  }
}

Loaded::~Loaded() {
  if (driver_.cuCtxPushCurrent(context_) != kSuccess) return;  // the context is gone, and all that was in it
  driver_.cuCtxSynchronize();
  release();
  Context popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
}

void Loaded::release() noexcept {
  for (const Instance& instance : instances_) driver_.cuGraphExecDestroy(instance.exec);
  if (graph_ != nullptr) driver_.cuGraphDestroy(graph_);
  for (const Event event : events_) {
    if (event != nullptr) driver_.cuEventDestroy(event);
  }
  for (const Stream stream : streams_) {
    if (stream != nullptr) driver_.cuStreamDestroy(stream);
  }
  if (last_run_ != nullptr) driver_.cuEventDestroy(last_run_);
  if (recording_ != nullptr) driver_.cuStreamDestroy(recording_);
  by_library_.clear();
  if (cublas_ != nullptr) Cublas::get().cublasLtDestroy(cublas_);
  if (cudnn_ != nullptr) Cudnn::get().cudnnDestroy(cudnn_);
  if (workspace_ != 0) driver_.cuMemFree(workspace_);
  if (boxes_ != 0) driver_.cuMemFree(boxes_);
  if (module_ != nullptr) driver_.cuModuleUnload(module_);
}

void Loaded::take_workspace() {
  if (!executable_.keeps_workspace()) return;
  const auto bytes = static_cast<size_t>(executable_.graph().workspace_bytes);
  const Result result = driver_.cuMemAlloc(&workspace_, bytes);
  if (result != kSuccess) {
    workspace_ = 0;
    driver_.check(result, ("cuMemAlloc for a workspace of " + std::to_string(bytes) + " bytes").c_str());
  }
  driver_.check(driver_.cuEventCreate(&last_run_, kEventDisableTiming), "cuEventCreate");
}

void Loaded::find_kernels() {
  const Code& code = executable_.code();
  for (size_t op = 0; op < code.kernel_of_op.size(); ++op) {
    const auto number = static_cast<size_t>(code.kernel_of_op[op]);
    if (number >= kernels_.size()) kernels_.resize(number + 1);
    Kernel& kernel = kernels_[number];
    const std::string name = "op" + std::to_string(number);
    DevicePointer data = 0;
    size_t bytes = 0;
    KernelShape shape;
    driver_.check(driver_.cuModuleGetGlobal(&data, &bytes, module_, (name + "_shape").c_str()), "cuModuleGetGlobal");
    if (bytes != sizeof shape)
      throw DeviceError("the code's " + name + "_shape has another size; install one build of aspen_jax");
    driver_.check(driver_.cuMemcpyDtoH(&shape, data, bytes), "cuMemcpyDtoH");
    const uint32_t num_addresses = executable_.first_address()[op + 1] - executable_.first_address()[op];
    if (shape.most_ops < 1 || shape.most_ops > kMostOps) {
      throw DeviceError("the code's " + name + " is for " + std::to_string(shape.most_ops) +
                        " ops; install one build of aspen_jax");
    }
    if (shape.num_addresses != static_cast<int32_t>(num_addresses)) {
      throw DeviceError("the code's " + name + " takes " + std::to_string(shape.num_addresses) + " addresses, but op '" +
                        executable_.graph().op_names[op] + "' has " + std::to_string(num_addresses) +
                        "; trace the function again");
    }
    if (shape.product.matrices != 0) {
      prepare_product(op, shape.product);
    } else if (shape.convolution.images != 0) {
      prepare_convolution(op, shape.convolution);
    } else if (shape.num_tensors != 0) {
      prepare_maps(op, shape);
    }
    if (kernel.function != nullptr) continue;
    driver_.check(driver_.cuModuleGetFunction(&kernel.function, module_, name.c_str()), "cuModuleGetFunction");
    kernel.threads = static_cast<unsigned>(shape.threads);
    kernel.blocks_per_tile = static_cast<unsigned>(shape.slices);
    kernel.shared_bytes = static_cast<unsigned>(shape.shared_bytes);
    kernel.most_ops = static_cast<unsigned>(shape.most_ops);
    if (shape.shared_bytes > kFreeSharedBytes) {
      driver_.check(driver_.cuFuncSetAttribute(kernel.function, kMaxDynamicSharedSizeBytes, shape.shared_bytes),
                    "cuFuncSetAttribute");
    }
  }
}

void Loaded::check_launches() const {
  for (uint32_t launch = 0; launch < executable_.launches().size(); ++launch) {
    const auto ops = executable_.launches().ops_of(launch);
    const Kernel& kernel = kernels_[static_cast<size_t>(executable_.code().kernel_of_op[ops.front()])];
    const bool are_ours = std::ranges::none_of(ops, [&](uint32_t op) { return by_library_.contains(op); });
    if (ops.size() <= kernel.most_ops && (ops.size() == 1 || are_ours)) continue;
    throw DeviceError("the code cannot launch " + executable_.describe(launch) +
                      " together; install one build of aspen_jax, and trace the function again");
  }
}

void Loaded::take_room() {
  for (uint32_t launch = 0; launch < executable_.launches().size(); ++launch) {
    const uint32_t op = executable_.launches().launches[launch].op;
    const Kernel& kernel = kernels_[static_cast<size_t>(executable_.code().kernel_of_op[op])];
    if (kernel.most_ops == 1) continue;
    const auto mapped = mapped_.find(op);
    const size_t addresses = executable_.first_address()[op + 1] - executable_.first_address()[op];
    const size_t bytes =
        mapped == mapped_.end() ? addresses * sizeof(DevicePointer) : mapped->second.arguments.size() * sizeof(TensorMap);
    together_[launch].resize((kernel.most_ops * bytes + sizeof(TensorMap) - 1) / sizeof(TensorMap));
  }
}

bool Loaded::kernels_wait() {
  DevicePointer data = 0;
  size_t bytes = 0;
  const Result result = driver_.cuModuleGetGlobal(&data, &bytes, module_, "aspen_kernels_wait");
  if (result == kNotFound) return false;  // code of an earlier version
  driver_.check(result, "cuModuleGetGlobal");
  int32_t value = 0;
  if (bytes != sizeof value) throw DeviceError("the code's aspen_kernels_wait has another size; install one build of aspen_jax");
  driver_.check(driver_.cuMemcpyDtoH(&value, data, bytes), "cuMemcpyDtoH");
  return value != 0;
}

void Loaded::copy_boxes() {
  const LaunchGraph& launches = executable_.launches();
  const Graph& graph = executable_.graph();
  std::vector<int32_t> boxes;
  boxes.reserve(graph.boxes.size() + 1);
  std::vector<size_t> first;
  for (size_t launch = 0; launch < launches.size(); ++launch) {
    first.push_back(boxes.size());
    for (const uint32_t tile : launches.tiles_of(launch)) {
      const auto box = graph.box_of(tile);
      boxes.insert(boxes.end(), box.begin(), box.end());
    }
  }
  boxes.push_back(0);  // where all outputs are of rank 0
  const size_t bytes = boxes.size() * sizeof(int32_t);
  driver_.check(driver_.cuMemAlloc(&boxes_, bytes), "cuMemAlloc");
  driver_.check(driver_.cuMemcpyHtoD(boxes_, boxes.data(), bytes), "cuMemcpyHtoD");
  for (const size_t word : first) boxes_of_.push_back(boxes_ + word * sizeof(int32_t));
}

void Loaded::prepare_maps(size_t op, const KernelShape& shape) {
  const Op& what = executable_.graph().ops[op];
  bool is_right = shape.num_tensors > 0 && shape.num_tensors <= kMostTensors;
  for (int number = 0; is_right && number < shape.num_tensors; ++number) {
    const TensorShape& tensor = shape.tensors[number];
    is_right = tensor.input >= 0 && static_cast<uint32_t>(tensor.input) < what.num_inputs && tensor.rank > 0 &&
               tensor.rank <= kTensorRank;
  }
  if (!is_right) {
    throw DeviceError(
        "the code of op '" + executable_.graph().op_names[op] +
        "' asks for tensor maps that are not of its inputs; install one build of aspen_jax, and trace the function again");
  }
  Mapped& mapped = mapped_[op];
  mapped.shape = shape;
  const size_t address_bytes = static_cast<size_t>(shape.num_addresses) * sizeof(DevicePointer);
  mapped.first_map = (address_bytes + sizeof(TensorMap) - 1) / sizeof(TensorMap);
  mapped.arguments.resize(mapped.first_map + static_cast<size_t>(shape.num_tensors));
}

void Loaded::check_inputs(size_t op, std::span<const int32_t> inputs) const {
  const auto num_inputs = static_cast<int32_t>(executable_.graph().ops[op].num_inputs);
  const bool are_its = std::ranges::all_of(inputs, [&](int32_t input) { return input >= 0 && input < num_inputs; });
  const bool is_one = std::ranges::count(executable_.launches().launches, op, &Launch::op) == 1;
  if (is_one && are_its) return;
  throw DeviceError("the code of op '" + executable_.graph().op_names[op] +
                    "' names something for a library that is not the op's; install one build of aspen_jax, and trace the "
                    "function again");
}

void Loaded::open_recording() {
  if (recording_ == nullptr) driver_.check(driver_.cuStreamCreate(&recording_, kStreamNonBlocking), "cuStreamCreate");
}

void Loaded::prepare_product(size_t op, const LibraryProduct& product) {
  std::vector<int32_t> inputs{product.left.input, product.right.input};
  for (const int32_t input : {product.added.input, product.bias}) {
    if (input != -1) inputs.push_back(input);
  }
  check_inputs(op, inputs);
  open_recording();
  if (cublas_ == nullptr) Cublas::check(Cublas::get().cublasLtCreate(&cublas_), "cublasLtCreate");
  by_library_[op] = std::make_unique<ProductCall>(cublas_, product);
}

void Loaded::prepare_convolution(size_t op, const LibraryConvolution& convolution) {
  check_convolution(convolution);
  std::vector<int32_t> inputs{0, 1};
  for (int32_t number = 0; number < convolution.num_operands; ++number) inputs.push_back(convolution.operands[number].input);
  check_inputs(op, inputs);
  open_recording();
  if (cudnn_ == nullptr) Cudnn::check(Cudnn::get().cudnnCreate(&cudnn_), "cudnnCreate");
  by_library_[op] = std::make_unique<ConvolutionCall>(cudnn_, convolution);
}

bool Loaded::is_by_library(uint32_t launch) const {
  return !by_library_.empty() && by_library_.contains(executable_.launches().launches[launch].op);
}

void Loaded::give_to_library(Stream stream, uint32_t launch, std::span<const DevicePointer> addresses) {
  const uint32_t op = executable_.launches().launches[launch].op;
  const auto& first = executable_.first_address();
  by_library_.at(op)->give(stream, addresses.subspan(first[op], first[op + 1] - first[op]));
}

DeviceGraph Loaded::record_library(uint32_t launch, std::span<const DevicePointer> addresses) {
  // Relaxed: the library may load its code now.
  driver_.check(driver_.cuStreamBeginCapture(recording_, kCaptureRelaxed), "cuStreamBeginCapture");
  DeviceGraph graph = nullptr;
  try {
    give_to_library(recording_, launch, addresses);
  } catch (...) {
    driver_.cuStreamEndCapture(recording_, &graph);
    if (graph != nullptr) driver_.cuGraphDestroy(graph);
    throw;
  }
  driver_.check(driver_.cuStreamEndCapture(recording_, &graph), "cuStreamEndCapture");
  return graph;
}

void Loaded::encode_maps(std::span<const DevicePointer> addresses) {
  for (auto& [op, mapped] : mapped_) {
    const auto own = addresses.subspan(executable_.first_address()[op], static_cast<size_t>(mapped.shape.num_addresses));
    if (std::ranges::equal(own, mapped.addresses)) continue;
    mapped.addresses.clear();  // until all maps are made
    std::memcpy(static_cast<void*>(mapped.arguments.data()), own.data(), own.size_bytes());
    for (int number = 0; number < mapped.shape.num_tensors; ++number) {
      const TensorShape& tensor = mapped.shape.tensors[number];
      TensorMap* const map = &mapped.arguments[mapped.first_map + static_cast<size_t>(number)];
      const Result result = driver_.cuTensorMapEncodeTiled(map, kMapUint16, static_cast<uint32_t>(tensor.rank),
                                                           reinterpret_cast<void*>(own[static_cast<size_t>(tensor.input)]),
                                                           tensor.extents, tensor.strides, tensor.box, tensor.steps,
                                                           kMapNoInterleave, kMapSwizzle128, kMapPromotion128, kMapZeros);
      if (result == kSuccess) continue;
      throw DeviceError("cuTensorMapEncodeTiled for input " + std::to_string(tensor.input) + " of op '" +
                        executable_.graph().op_names[op] + "' failed with " + driver_.name_of(result) +
                        "; set ASPEN_CUDA_ARCH=compute_80, for which code needs no tensor maps, and trace the function again");
    }
    mapped.addresses.assign(own.begin(), own.end());
  }
}

std::span<const std::byte> Loaded::argument_of(uint32_t op, std::span<const DevicePointer> addresses) const {
  if (const auto mapped = mapped_.find(op); mapped != mapped_.end()) return std::as_bytes(std::span(mapped->second.arguments));
  const auto& first = executable_.first_address();
  return std::as_bytes(addresses.subspan(first[op], first[op + 1] - first[op]));
}

Loaded::Arguments Loaded::arguments(uint32_t launch, std::span<const DevicePointer> addresses) {
  const auto ops = executable_.launches().ops_of(launch);
  const Kernel& kernel = kernels_[static_cast<size_t>(executable_.code().kernel_of_op[ops.front()])];
  // CUDA copies what these point to before it returns, and does not write there.
  const auto pass = [&](const void* first) { return Arguments{{const_cast<void*>(first), &boxes_of_[launch]}}; };
  const auto argument = argument_of(ops.front(), addresses);
  if (kernel.most_ops == 1) return pass(argument.data());
  Storage& together = together_.at(launch);
  // CUDA reads as many as the kernel takes; of the last ones there are no thread blocks.
  for (size_t number = 0; number < kernel.most_ops; ++number) {
    const auto own = argument_of(ops[std::min(number, ops.size() - 1)], addresses);
    std::memcpy(reinterpret_cast<std::byte*>(together.data()) + number * argument.size(), own.data(), argument.size());
  }
  return pass(together.data());
}

KernelNodeParams Loaded::node_params(uint32_t launch, Arguments& arguments) const {
  const Launch& what = executable_.launches().launches[launch];
  const Kernel& kernel = kernels_[static_cast<size_t>(executable_.code().kernel_of_op[what.op])];
  return {kernel.function,
          what.num_tiles / what.num_ops * kernel.blocks_per_tile,
          what.num_ops,
          1,
          kernel.threads,
          1,
          1,
          kernel.shared_bytes,
          arguments.values,
          nullptr,
          nullptr,
          nullptr};
}

void Loaded::run(Stream stream, Executor executor, std::span<const DevicePointer> addresses) {
  const auto give = [&] { executor == Executor::kGraph ? replay(stream, addresses) : issue_to_streams(stream, addresses); };
  if (workspace_ == 0) return give();
  // Runs on several streams write the same workspace: each waits for the one before, on the device. Nobody waits where that was
  // given to the same stream, or is over.
  driver_.check(driver_.cuStreamWaitEvent(stream, last_run_, 0), "cuStreamWaitEvent");
  try {
    give();
  } catch (...) {
    record_run(stream);  // the device may have got a part of it
    throw;
  }
  driver_.check(record_run(stream), "cuEventRecord");
}

Result Loaded::record_run(Stream stream) noexcept {
  const Result result = driver_.cuEventRecord(last_run_, stream);
  // Then nothing stands for the run, and the next one would not wait for it: so the host does.
  if (result != kSuccess) driver_.cuStreamSynchronize(stream);
  return result;
}

void Loaded::issue_to_streams(Stream stream, std::span<const DevicePointer> addresses) {
  encode_maps(addresses);
  StreamLauncher launcher(*this, stream, addresses);
  const Issued issued = issue(executable_.schedule(), launcher);
  if (issued.error == nullptr) return;
  if (!launcher.failure_of_library().empty()) throw DeviceError(launcher.failure_of_library());
  const Command& command = executable_.schedule().commands[issued.command];
  const bool is_launch = command.kind == Command::Kind::kLaunch;
  const std::string call = is_launch                                ? "cuLaunchKernel for " + executable_.describe(command.index)
                           : command.kind == Command::Kind::kRecord ? "cuEventRecord"
                                                                    : "cuStreamWaitEvent";
  driver_.check(launcher.failure(), call.c_str());
}

std::vector<GraphNode> Loaded::add_nodes(DeviceGraph graph, std::span<const GraphNode> before,
                                         std::span<const DevicePointer> addresses, Edges edges) {
  const auto& parents = executable_.nearest_parents();
  std::vector<GraphNode> nodes(parents.size());
  std::vector<GraphNode> after;
  for (uint32_t launch = 0; launch < parents.size(); ++launch) {
    after.clear();
    if (edges == Edges::kFull) {
      for (const uint32_t parent : parents[launch]) after.push_back(nodes[parent]);
      if (after.empty()) after.assign(before.begin(), before.end());
    }
    nodes[launch] = add_node(graph, after, launch, addresses);
  }
  return nodes;
}

GraphNode Loaded::add_node(DeviceGraph graph, std::span<const GraphNode> after, uint32_t launch,
                           std::span<const DevicePointer> addresses) {
  GraphNode node = nullptr;
  if (is_by_library(launch)) {
    const DeviceGraph recorded = record_library(launch, addresses);
    const Result result = driver_.cuGraphAddChildGraphNode(&node, graph, after.data(), after.size(), recorded);
    driver_.cuGraphDestroy(recorded);  // the node has a copy
    if (result != kSuccess) driver_.check(result, ("cuGraphAddChildGraphNode for " + executable_.describe(launch)).c_str());
  } else {
    Arguments values = arguments(launch, addresses);
    const KernelNodeParams params = node_params(launch, values);
    const Result result = driver_.cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &params);
    if (result != kSuccess) driver_.check(result, ("cuGraphAddKernelNode for " + executable_.describe(launch)).c_str());
  }
  return node;
}

// A launch that starts early waits in its kernel until its parents are over. They waited for theirs, and so on: see
// kernels/launch_order.h. Its own nodes have no other edges, and nothing in a graph of ours comes before the first. Only kernels
// of ours wait so: what a library computes begins when its parents are over, and its children when it is.
void Loaded::add_programmatic_edges() {
  const auto& parents = executable_.nearest_parents();
  std::vector<GraphNode> from, to;
  std::vector<EdgeData> data;
  for (uint32_t launch = 0; launch < parents.size(); ++launch) {
    for (const uint32_t parent : parents[launch]) {
      from.push_back(nodes_[parent]);
      to.push_back(nodes_[launch]);
      const bool waits = !is_by_library(parent) && !is_by_library(launch);
      data.push_back(waits ? EdgeData{kProgrammaticPort, 0, kProgrammaticEdge, {}} : EdgeData{});
    }
  }
  check_graph(driver_.cuGraphAddDependencies(graph_, from.data(), to.data(), data.data(), from.size()), "cuGraphAddDependencies");
}

void Loaded::check_graph(Result result, const char* call) const {
  if (is_programmatic_ && result != kSuccess && result != kOutOfMemory) {
    throw DeviceError(
        std::string(call) + " failed with " + driver_.name_of(result) + "; set " + kProgrammaticVariable +
        "=off, for graphs whose launches do not start early, and start again, or run on the CPU (JAX_PLATFORMS=cpu)");
  }
  driver_.check(result, call);
}

void Loaded::replay(Stream stream, std::span<const DevicePointer> addresses) {
  const auto same = [&](const Instance& instance) { return std::ranges::equal(instance.addresses, addresses); };
  const auto found = std::ranges::find_if(instances_, same);
  if (found == instances_.end()) {
    make_instance(stream, addresses);
  } else {
    std::rotate(instances_.begin(), found, found + 1);
  }
  driver_.check(driver_.cuGraphLaunch(instances_.front().exec, stream), "cuGraphLaunch");
}

void Loaded::make_graph(std::span<const DevicePointer> addresses) {
  driver_.check(driver_.cuGraphCreate(&graph_, 0), "cuGraphCreate");
  try {
    nodes_ = add_nodes(graph_, {}, addresses, is_programmatic_ ? Edges::kNone : Edges::kFull);
    if (is_programmatic_) add_programmatic_edges();
    graph_addresses_.assign(addresses.begin(), addresses.end());
  } catch (...) {
    driver_.cuGraphDestroy(graph_);
    graph_ = nullptr;
    throw;
  }
}

void Loaded::make_instance(Stream stream, std::span<const DevicePointer> addresses) {
  encode_maps(addresses);
  if (graph_ == nullptr) make_graph(addresses);
  Instance instance;
  const bool is_new = instances_.size() < kMostInstances;
  if (is_new) {
    instance.addresses = graph_addresses_;
    check_graph(driver_.cuGraphInstantiate(&instance.exec, graph_, 0), "cuGraphInstantiate");
  } else {
    instance = std::move(instances_.back());
    instances_.pop_back();
  }
  try {
    set_nodes(instance, addresses);
    // Here, so that a device without room for it is named, and a launch is but a launch.
    if (is_new) driver_.check(driver_.cuGraphUpload(instance.exec, stream), "cuGraphUpload");
  } catch (...) {
    driver_.cuGraphExecDestroy(instance.exec);  // some of its nodes may have changed, others not
    throw;
  }
  instances_.insert(instances_.begin(), std::move(instance));  // there is room, so this does not throw
}

// Weights stay where they are, and so does the workspace: so only a few nodes change.
void Loaded::set_nodes(Instance& instance, std::span<const DevicePointer> addresses) {
  const auto& first = executable_.first_address();
  const auto is_new = [&](uint32_t op) {
    return !std::equal(addresses.begin() + first[op], addresses.begin() + first[op + 1], instance.addresses.begin() + first[op]);
  };
  for (uint32_t launch = 0; launch < nodes_.size(); ++launch) {
    if (std::ranges::any_of(executable_.launches().ops_of(launch), is_new)) set_node(instance.exec, launch, addresses);
  }
  instance.addresses.assign(addresses.begin(), addresses.end());
}

void Loaded::set_node(GraphExec exec, uint32_t launch, std::span<const DevicePointer> addresses) {
  const char* call = "cuGraphExecKernelNodeSetParams";
  Result result = kSuccess;
  if (is_by_library(launch)) {
    call = "cuGraphExecChildGraphNodeSetParams";
    const DeviceGraph recorded = record_library(launch, addresses);
    result = driver_.cuGraphExecChildGraphNodeSetParams(exec, nodes_[launch], recorded);
    driver_.cuGraphDestroy(recorded);
  } else {
    Arguments values = arguments(launch, addresses);
    const KernelNodeParams params = node_params(launch, values);
    result = driver_.cuGraphExecKernelNodeSetParams(exec, nodes_[launch], &params);
  }
  if (result != kSuccess) driver_.check(result, (std::string(call) + " for " + executable_.describe(launch)).c_str());
}

void Loaded::add_to_capture(Stream stream, DeviceGraph graph, std::span<const GraphNode> before,
                            std::span<const DevicePointer> addresses) {
  encode_maps(addresses);
  // Full edges: the graph is the caller's, who may ask for its edges by calls that refuse others.
  std::vector<GraphNode> nodes = add_nodes(graph, before, addresses, Edges::kFull);
  std::vector<bool> is_last(nodes.size(), true);
  for (const auto& parents : executable_.nearest_parents()) {
    for (const uint32_t parent : parents) is_last[parent] = false;
  }
  std::vector<GraphNode> last;
  for (size_t launch = 0; launch < nodes.size(); ++launch) {
    if (is_last[launch]) last.push_back(nodes[launch]);
  }
  if (last.empty()) return;
  driver_.check(driver_.cuStreamUpdateCaptureDependencies(stream, last.data(), last.size(), kSetCaptureDependencies),
                "cuStreamUpdateCaptureDependencies");
}

}  // namespace aspen::cuda
