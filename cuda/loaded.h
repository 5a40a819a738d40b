// An executable's code in one context of the device, and the streams, events and CUDA graphs that launch it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "driver.h"
#include "kernels/kernel_shape.h"
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
    unsigned threads, shared_bytes, blocks_per_tile;
  };
  // The arguments of a launch's kernel, as CUDA wants them.
  struct Arguments {
    void* values[2];
  };

  // An op whose kernel copies by tensor maps. Its first argument is made again where addresses have changed.
  struct Mapped {
    KernelShape shape;
    std::vector<TensorMap> arguments;  // in the place of the first ones addresses, and from first_map on the maps
    size_t first_map = 0;
    std::vector<DevicePointer> addresses;  // that are in the maps; none where some map could not be made
  };

  void find_kernels();
  void prepare_maps(size_t op, const KernelShape& shape);
  // Throws DeviceError, with nothing given to the device.
  void encode_maps(std::span<const DevicePointer> addresses);
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
  std::map<size_t, Mapped> mapped_;      // by op; its arguments are those of the run that is being issued
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
