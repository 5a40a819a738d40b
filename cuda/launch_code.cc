#include "launch_code.h"

#include <algorithm>
#include <cstring>

#include "executable.h"
#include "library_calls.h"

namespace aspen::cuda {
namespace {

// More than this of shared memory must be asked for.
constexpr int kFreeSharedBytes = 48 << 10;

}  // namespace

LaunchCode::LaunchCode(const HomeContext& home, const Executable& executable)
    : driver_(home.driver()), executable_(executable), module_(home), boxes_(home) {
  driver_.check(module_.take(driver_.cuModuleLoadData, executable_.code().image.data()), "cuModuleLoadData");
}

void LaunchCode::prepare(LibraryCalls& libraries) {
  find_kernels(libraries);
  check_launches(libraries);
  take_room();
  copy_boxes();
}

void LaunchCode::find_kernels(LibraryCalls& libraries) {
  const std::vector<int32_t>& kernel_of_op = executable_.code().kernel_of_op;
  for (size_t op = 0; op < kernel_of_op.size(); ++op) {
    const auto number = static_cast<size_t>(kernel_of_op[op]);
    if (number >= kernels_.size()) kernels_.resize(number + 1);
    const std::string name = "op" + std::to_string(number);
    const KernelShape shape = shape_of(op, name);
    if (!libraries.add(op, shape) && shape.num_tensors != 0) prepare_maps(op, shape);
    if (kernels_[number].function == nullptr) kernels_[number] = find_kernel(name, shape);
  }
}

template <class T>
Result LaunchCode::read(const std::string& name, T& value) const {
  DevicePointer data = 0;
  size_t bytes = 0;
  const Result result = driver_.cuModuleGetGlobal(&data, &bytes, module_.get(), name.c_str());
  if (result != kSuccess) return result;
  if (bytes != sizeof value) throw DeviceError("the code's " + name + " has another size; install one build of aspen_jax");
  driver_.check(driver_.cuMemcpyDtoH(&value, data, bytes), "cuMemcpyDtoH");
  return kSuccess;
}

KernelShape LaunchCode::shape_of(size_t op, const std::string& kernel) const {
  KernelShape shape;
  driver_.check(read(kernel + "_shape", shape), "cuModuleGetGlobal");
  if (shape.most_ops < 1 || shape.most_ops > kMostOps) {
    throw DeviceError("the code's " + kernel + " is for " + std::to_string(shape.most_ops) +
                      " ops; install one build of aspen_jax");
  }
  const uint32_t num_addresses = executable_.first_address()[op + 1] - executable_.first_address()[op];
  if (shape.num_addresses != static_cast<int32_t>(num_addresses)) {
    throw DeviceError("the code's " + kernel + " takes " + std::to_string(shape.num_addresses) + " addresses, but op '" +
                      executable_.graph().op_names[op] + "' has " + std::to_string(num_addresses) + "; trace the function again");
  }
  return shape;
}

LaunchCode::Kernel LaunchCode::find_kernel(const std::string& name, const KernelShape& shape) const {
  Kernel kernel{nullptr, static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.shared_bytes),
                static_cast<unsigned>(shape.slices), static_cast<unsigned>(shape.most_ops)};
  driver_.check(driver_.cuModuleGetFunction(&kernel.function, module_.get(), name.c_str()), "cuModuleGetFunction");
  if (shape.shared_bytes > kFreeSharedBytes) {
    driver_.check(driver_.cuFuncSetAttribute(kernel.function, kMaxDynamicSharedSizeBytes, shape.shared_bytes),
                  "cuFuncSetAttribute");
  }
  return kernel;
}

const LaunchCode::Kernel& LaunchCode::kernel_of(size_t op) const {
  return kernels_[static_cast<size_t>(executable_.code().kernel_of_op[op])];
}

void LaunchCode::check_launches(const LibraryCalls& libraries) const {
  for (uint32_t launch = 0; launch < executable_.launches().size(); ++launch) {
    const auto ops = executable_.launches().ops_of(launch);
    const bool are_ours = std::ranges::none_of(ops, [&](uint32_t op) { return libraries.contains_op(op); });
    if (ops.size() <= kernel_of(ops.front()).most_ops && (ops.size() == 1 || are_ours)) continue;
    throw DeviceError("the code cannot launch " + executable_.describe(launch) +
                      " together; install one build of aspen_jax, and trace the function again");
  }
}

void LaunchCode::take_room() {
  for (uint32_t launch = 0; launch < executable_.launches().size(); ++launch) {
    const uint32_t op = executable_.launches().launches[launch].op;
    const size_t most_ops = kernel_of(op).most_ops;
    if (most_ops == 1) continue;
    const auto mapped = mapped_.find(op);
    const size_t addresses = executable_.first_address()[op + 1] - executable_.first_address()[op];
    const size_t bytes =
        mapped == mapped_.end() ? addresses * sizeof(DevicePointer) : mapped->second.arguments.size() * sizeof(TensorMap);
    together_[launch].resize((most_ops * bytes + sizeof(TensorMap) - 1) / sizeof(TensorMap));
  }
}

bool LaunchCode::kernels_wait() const {
  int32_t value = 0;
  const Result result = read("aspen_kernels_wait", value);
  if (result == kNotFound) return false;  // code of an earlier version
  driver_.check(result, "cuModuleGetGlobal");
  return value != 0;
}

void LaunchCode::copy_boxes() {
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
  driver_.check(boxes_.take(driver_.cuMemAlloc, bytes), "cuMemAlloc");
  driver_.check(driver_.cuMemcpyHtoD(boxes_.get(), boxes.data(), bytes), "cuMemcpyHtoD");
  for (const size_t word : first) boxes_of_.push_back(boxes_.get() + word * sizeof(int32_t));
}

void LaunchCode::prepare_maps(size_t op, const KernelShape& shape) {
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

void LaunchCode::encode_maps(std::span<const DevicePointer> addresses) {
  for (auto& [op, mapped] : mapped_) {
    const auto own = executable_.addresses_of(op, addresses);
    if (std::ranges::equal(own, mapped.addresses)) continue;
    mapped.addresses.clear();  // until all maps are made
    std::memcpy(static_cast<void*>(mapped.arguments.data()), own.data(), own.size_bytes());
    for (int number = 0; number < mapped.shape.num_tensors; ++number) {
      const TensorShape& tensor = mapped.shape.tensors[number];
      TensorMap& map = mapped.arguments[mapped.first_map + static_cast<size_t>(number)];
      encode_map(op, tensor, own[static_cast<size_t>(tensor.input)], map);
    }
    mapped.addresses.assign(own.begin(), own.end());
  }
}

void LaunchCode::encode_map(size_t op, const TensorShape& tensor, DevicePointer address, TensorMap& map) const {
  const Result result = driver_.cuTensorMapEncodeTiled(
      &map, kMapUint16, static_cast<uint32_t>(tensor.rank), reinterpret_cast<void*>(address), tensor.extents, tensor.strides,
      tensor.box, tensor.steps, kMapNoInterleave, kMapSwizzle128, kMapPromotion128, kMapZeros);
  if (result == kSuccess) return;
  throw DeviceError("cuTensorMapEncodeTiled for input " + std::to_string(tensor.input) + " of op '" +
                    executable_.graph().op_names[op] + "' failed with " + driver_.name_of(result) +
                    "; set ASPEN_CUDA_ARCH=compute_80, for which code needs no tensor maps, and trace the function again");
}

std::span<const std::byte> LaunchCode::argument_of(uint32_t op, std::span<const DevicePointer> addresses) const {
  if (const auto mapped = mapped_.find(op); mapped != mapped_.end()) return std::as_bytes(std::span(mapped->second.arguments));
  return std::as_bytes(executable_.addresses_of(op, addresses));
}

const void* LaunchCode::first_argument(uint32_t launch, std::span<const DevicePointer> addresses) {
  const auto ops = executable_.launches().ops_of(launch);
  const size_t most_ops = kernel_of(ops.front()).most_ops;
  const auto argument = argument_of(ops.front(), addresses);
  if (most_ops == 1) return argument.data();
  Storage& together = together_.at(launch);
  // CUDA reads as many as the kernel takes; of the last ones there are no thread blocks.
  for (size_t number = 0; number < most_ops; ++number) {
    const auto own = argument_of(ops[std::min(number, ops.size() - 1)], addresses);
    std::memcpy(reinterpret_cast<std::byte*>(together.data()) + number * argument.size(), own.data(), argument.size());
  }
  return together.data();
}

KernelNodeParams LaunchCode::params(uint32_t launch, std::span<const DevicePointer> addresses) {
  const Launch& what = executable_.launches().launches[launch];
  const Kernel& kernel = kernel_of(what.op);
  // CUDA copies what these point to before it returns, and does not write there.
  arguments_[0] = const_cast<void*>(first_argument(launch, addresses));
  arguments_[1] = &boxes_of_[launch];
  return {kernel.function,
          what.num_tiles / what.num_ops * kernel.blocks_per_tile,
          what.num_ops,
          1,
          kernel.threads,
          1,
          1,
          kernel.shared_bytes,
          arguments_,
          nullptr,
          nullptr,
          nullptr};
}

}  // namespace aspen::cuda
