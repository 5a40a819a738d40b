// An executable's run as one CUDA graph, which is launched again for each run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "driver.h"
#include "launch_nodes.h"
#include "owned.h"

namespace aspen::cuda {

class Executable;
class LaunchCode;
class LibraryCalls;

// Makes the graph at the first run. The context is current at each call. Throws DeviceError.
class ReplayGraph {
 public:
  // How many are kept, by the addresses that their nodes hold. An allocator gives few different ones in turn: two for an argument
  // and two for a result, where a caller keeps one of each.
  static constexpr size_t kMostInstances = 4;

  ReplayGraph(const HomeContext& home, const Executable& executable, LaunchCode& code, const LibraryCalls& libraries,
              const LaunchNodes& launch_nodes);

  // Gives a whole run to a stream. `addresses` are those of all ops.
  void replay(Stream stream, std::span<const DevicePointer> addresses);

 private:
  // The CUDA graph, ready for the device, and the addresses that its nodes hold.
  struct Instance {
    Owned<&Driver::cuGraphExecDestroy> exec;
    std::vector<DevicePointer> addresses;
  };

  void make_graph(std::span<const DevicePointer> addresses);
  void add_programmatic_edges(DeviceGraph graph) const;
  // Throws DeviceError, if a call failed that may refuse a graph because of such edges.
  void check_graph(Result result, const char* call) const;
  // Makes an instance for these addresses the first: a new one, or the one that was used longest ago.
  void make_instance(Stream stream, std::span<const DevicePointer> addresses);
  void set_nodes(Instance& instance, std::span<const DevicePointer> addresses) const;

  const HomeContext& home_;
  const Driver& driver_;
  const Executable& executable_;
  LaunchCode& code_;
  const LibraryCalls& libraries_;
  const LaunchNodes& launch_nodes_;
  const bool is_programmatic_;  // nodes start before their parents are over
  Owned<&Driver::cuGraphDestroy> graph_;
  std::vector<GraphNode> nodes_;          // of each launch in graph_
  std::vector<DevicePointer> addresses_;  // that they hold
  std::vector<Instance> instances_;       // of graph_; the latest first
};

}  // namespace aspen::cuda
