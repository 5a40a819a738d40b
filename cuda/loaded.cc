#include "loaded.h"

#include <string>

#include "aspen_jax/engine/failure.h"
#include "executable.h"
#include "launcher.h"

namespace aspen::cuda {

// Schedules begin with the caller's stream.
class StreamLauncher final : public Launcher {
 public:
  StreamLauncher(Loaded& loaded, Stream stream, std::span<const DevicePointer> addresses)
      : loaded_(loaded), stream_(stream), addresses_(addresses) {}

  const char* launch(uint32_t stream, uint32_t launch) noexcept override {
    if (loaded_.libraries_.contains(launch)) return give_to_library(stream, launch);
    const KernelNodeParams params = loaded_.code_.params(launch, addresses_);
    return name(loaded_.driver_.cuLaunchKernel(params.function, params.grid_x, params.grid_y, 1, params.block_x, 1, 1,
                                               params.shared_bytes, at(stream), params.arguments, nullptr));
  }
  const char* record(uint32_t stream, uint32_t event) noexcept override {
    return name(loaded_.driver_.cuEventRecord(loaded_.events_[event].get(), at(stream)));
  }
  const char* wait(uint32_t stream, uint32_t event) noexcept override {
    return name(loaded_.driver_.cuStreamWaitEvent(at(stream), loaded_.events_[event].get(), 0));
  }
  Result failure() const { return failure_; }
  // Of a library; empty where it has not failed.
  const std::string& failure_of_library() const { return failure_of_library_.text(); }

 private:
  const char* give_to_library(uint32_t stream, uint32_t launch) noexcept {
    try {
      loaded_.libraries_.give(at(stream), launch, addresses_);
      return nullptr;
    } catch (...) {
      failure_of_library_ = Failure::of_exception();
      return failure_of_library().c_str();
    }
  }

  Stream at(uint32_t stream) const { return stream == 0 ? stream_ : loaded_.streams_[stream - 1].get(); }
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
    : driver_(driver),
      executable_(executable),
      home_(driver, context),
      code_(home_, executable),
      workspace_(home_),
      libraries_(home_, executable),
      launch_nodes_(driver, executable, code_, libraries_),
      last_run_(home_) {
  code_.prepare(libraries_);
  take_workspace();
  replay_graph_.emplace(home_, executable, code_, libraries_, launch_nodes_);
  make_streams();
}

void Loaded::take_workspace() {
  if (!executable_.keeps_workspace()) return;
  const auto bytes = static_cast<size_t>(executable_.graph().workspace_bytes);
  const Result result = workspace_.take(driver_.cuMemAlloc, bytes);
  driver_.check(result, ("cuMemAlloc for a workspace of " + std::to_string(bytes) + " bytes").c_str());
  driver_.check(last_run_.take(driver_.cuEventCreate, kEventDisableTiming), "cuEventCreate");
}

void Loaded::make_streams() {
  const Schedule& schedule = executable_.schedule();
  for (size_t i = 1; i < schedule.num_streams; ++i) {
    driver_.check(streams_.emplace_back(home_).take(driver_.cuStreamCreate, kStreamNonBlocking), "cuStreamCreate");
  }
  for (size_t i = 0; i < schedule.num_events; ++i) {
    driver_.check(events_.emplace_back(home_).take(driver_.cuEventCreate, kEventDisableTiming), "cuEventCreate");
  }
}

void Loaded::run(Stream stream, Executor executor, std::span<const DevicePointer> addresses) {
  const auto give = [&] {
    executor == Executor::kGraph ? replay_graph_->replay(stream, addresses) : issue_to_streams(stream, addresses);
  };
  if (workspace() == 0) return give();
  // Runs on several streams write the same workspace: each waits for the one before, on the device. Nobody waits where that was
  // given to the same stream, or is over.
  driver_.check(driver_.cuStreamWaitEvent(stream, last_run_.get(), 0), "cuStreamWaitEvent");
  try {
    give();
  } catch (...) {
    record_run(stream);  // the device may have got a part of it
    throw;
  }
  driver_.check(record_run(stream), "cuEventRecord");
}

Result Loaded::record_run(Stream stream) noexcept {
  const Result result = driver_.cuEventRecord(last_run_.get(), stream);
  // Then nothing stands for the run, and the next one would not wait for it: so the host does.
  if (result != kSuccess) driver_.cuStreamSynchronize(stream);
  return result;
}

void Loaded::issue_to_streams(Stream stream, std::span<const DevicePointer> addresses) {
  code_.encode_maps(addresses);
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

void Loaded::add_to_capture(Stream stream, DeviceGraph graph, std::span<const GraphNode> before,
                            std::span<const DevicePointer> addresses) {
  code_.encode_maps(addresses);
  // Full edges: the graph is the caller's, who may ask for its edges by calls that refuse others.
  const auto nodes = launch_nodes_.add(graph, before, addresses, LaunchNodes::Edges::kFull);
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
