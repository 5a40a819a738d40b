// An executable's code in one context of the device, and the streams, events and CUDA graphs that launch it.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "driver.h"
#include "launcher.h"

namespace aspen::cuda {

class Executable;

class Loaded {
 public:
  // The context is current. Throws DeviceError.
  Loaded(const Driver& driver, const Executable& executable, Context context);
  ~Loaded();
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  // Streams, events and the CUDA graph are used by one run at a time; while it is issued, not until it has run: what is issued
  // later waits for what was issued before, because it goes to the same streams.
  std::mutex& mutex() { return mutex_; }
  Context context() const { return context_; }

  // Each gives a whole run to a stream of the context, which is current. `addresses` are those of all ops. Throw DeviceError.
  void issue_to_streams(Stream stream, std::span<const DevicePointer> addresses);
  void replay(Stream stream, std::span<const DevicePointer> addresses);
  // The stream's work is being captured into `graph`, and comes after `before` there.
  void add_to_capture(Stream stream, DeviceGraph graph, std::span<const GraphNode> before,
                      std::span<const DevicePointer> addresses);

 private:
  friend class StreamLauncher;
  struct Kernel {
    Function function;
    unsigned threads, shared_bytes;
  };
  // The arguments of a launch's kernel, as CUDA wants them.
  struct Arguments {
    void* values[2];
  };

  void find_kernels();
  void copy_boxes();
  void release() noexcept;
  Arguments arguments(uint32_t launch, std::span<const DevicePointer> addresses);
  KernelNodeParams node_params(uint32_t launch, Arguments& arguments) const;
  // Adds a node for each launch and returns those that nothing waits for.
  std::vector<GraphNode> add_nodes(DeviceGraph graph, std::span<const GraphNode> before, std::span<const DevicePointer> addresses,
                                   std::vector<GraphNode>& nodes);

  const Driver& driver_;
  const Executable& executable_;
  const Context context_;
  std::mutex mutex_;
  Module module_ = nullptr;
  std::vector<Kernel> kernels_;          // by the number in their name
  DevicePointer boxes_ = 0;              // of all launches' tiles
  std::vector<DevicePointer> boxes_of_;  // of each launch's
  std::vector<Stream> streams_;          // all but the caller's
  std::vector<Event> events_;
  DeviceGraph graph_ = nullptr;
  GraphExec exec_ = nullptr;
  std::vector<GraphNode> nodes_;          // of each launch in graph_
  std::vector<DevicePointer> addresses_;  // that exec_ holds
};

}  // namespace aspen::cuda
