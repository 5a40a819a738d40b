#include "executable.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "loaded.h"

namespace aspen::cuda {

Executable::Executable(Graph graph, Code code, Executor executor)
    : graph_(std::move(graph)), code_(std::move(code)), executor_(executor) {
  if (executor_ != Executor::kStream && executor_ != Executor::kGraph) {
    throw std::invalid_argument("executor " + std::to_string(static_cast<int32_t>(executor_)) +
                                " is unknown; trace the function with this build of aspen_jax");
  }
  if (code_.kernel_of_op.size() != graph_.ops.size()) {
    throw std::invalid_argument("there is code for " + std::to_string(code_.kernel_of_op.size()) + " ops, but the graph has " +
                                std::to_string(graph_.ops.size()) + "; trace the function again");
  }
  for (const int32_t kernel : code_.kernel_of_op) {
    if (kernel < 0 || static_cast<size_t>(kernel) >= graph_.ops.size()) {
      throw std::invalid_argument("kernel " + std::to_string(kernel) + " is not one of at most " +
                                  std::to_string(graph_.ops.size()) + "; trace the function again");
    }
  }
  for (size_t op = 0; op < code_.launched_with.size() && op < graph_.ops.size(); ++op) {
    const auto first = static_cast<size_t>(code_.launched_with[op]);
    if (first < op && code_.kernel_of_op[first] != code_.kernel_of_op[op]) {
      throw std::invalid_argument("ops " + std::to_string(first) + " and " + std::to_string(op) +
                                  " have different kernels, so they cannot be launched together; trace the function again");
    }
  }
  // The driver believes what an image's header says of its length, and text is read to its end.
  code_.image.push_back(std::byte{0});
  launches_ = group_tiles(graph_, kFewestTiles, code_.launched_with);
  schedule_ = traverse(graph_, launches_, kNumStreams);
  nearest_parents_ = cuda::nearest_parents(launches_);
  first_address_.push_back(0);
  for (const Op& op : graph_.ops) {
    first_address_.push_back(first_address_.back() + std::max(op.num_inputs, 1u) + 1 + op.num_further);
  }
}

Executable::~Executable() = default;

std::string Executable::describe(uint32_t launch) const {
  const auto tiles = launches_.tiles_of(launch);
  const auto [first, last] = std::minmax_element(tiles.begin(), tiles.end());
  const auto ops = launches_.ops_of(launch);
  // Of several ops, tiles of others may lie between.
  std::string text =
      ops.size() == 1 ? "tiles " + std::to_string(*first) + " to " + std::to_string(*last) + " of op" : "all tiles of op";
  for (const uint32_t op : ops) text += (op == ops.front() ? (ops.size() > 1 ? "s '" : " '") : ", '") + graph_.op_names[op] + "'";
  return text;
}

std::vector<DevicePointer> Executable::addresses(std::span<const DevicePointer> buffers) const {
  std::vector<DevicePointer> addresses;
  addresses.reserve(first_address_.back());
  for (const Op& op : graph_.ops) {
    for (const Input& input : graph_.inputs_of(op)) {
      addresses.push_back(buffers[static_cast<size_t>(graph_.values[input.value].buffer)] +
                          static_cast<DevicePointer>(input.offset));
    }
    if (op.num_inputs == 0) addresses.push_back(0);
    const auto add_output = [&](int32_t value) {
      const Value& output = graph_.values[value];
      addresses.push_back(buffers[static_cast<size_t>(output.buffer)] + static_cast<DevicePointer>(output.offset));
    };
    add_output(op.output);
    for (const int32_t value : graph_.further_of(op)) add_output(value);
  }
  return addresses;
}

Loaded& Executable::loaded(Stream stream) {
  const Driver& driver = Driver::get();
  Context context = nullptr;
  driver.check(driver.cuStreamGetCtx(stream, &context), "cuStreamGetCtx");
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Loaded>& loaded = loaded_[context];
  if (loaded == nullptr) {
    const Current current(driver, context);
    loaded = std::make_unique<Loaded>(driver, *this, context);
  }
  return *loaded;
}

void Executable::load(Stream stream) { loaded(stream); }

void Executable::run(Stream stream, std::span<const DevicePointer> buffers) {
  if (graph_.ops.empty()) return;
  const Driver& driver = Driver::get();
  Loaded& here = loaded(stream);
  const Current current(driver, here.context());
  CaptureStatus status = CaptureStatus::kNone;
  uint64_t id = 0;
  DeviceGraph graph = nullptr;
  const GraphNode* before = nullptr;
  size_t num_before = 0;
  driver.check(driver.cuStreamGetCaptureInfo(stream, &status, &id, &graph, &before, &num_before), "cuStreamGetCaptureInfo");
  const bool is_captured = status == CaptureStatus::kActive;
  std::vector<DevicePointer> used(buffers.begin(), buffers.end());
  if (!is_captured && here.workspace() != 0) used.back() = here.workspace();
  const std::vector<DevicePointer> where = addresses(used);
  const std::lock_guard lock(here.mutex());
  if (is_captured) {
    here.add_to_capture(stream, graph, std::span(before, num_before), where);
  } else {
    here.run(stream, executor_, where);
  }
}

}  // namespace aspen::cuda
