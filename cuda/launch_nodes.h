// Launches as nodes of CUDA graphs: kernels, or child graphs of what a library computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "driver.h"

namespace aspen::cuda {

class Executable;
class LaunchCode;
class LibraryCalls;

// `addresses` are those of all ops, of which the code has made its tensor maps. Throws DeviceError.
class LaunchNodes {
 public:
  enum class Edges { kNone, kFull };

  LaunchNodes(const Driver& driver, const Executable& executable, LaunchCode& code, LibraryCalls& libraries)
      : driver_(driver), executable_(executable), code_(code), libraries_(libraries) {}

  // Adds a node for each launch, without its edges or behind `before` and its parents.
  std::vector<GraphNode> add(DeviceGraph graph, std::span<const GraphNode> before, std::span<const DevicePointer> addresses,
                             Edges edges) const;
  // Gives a launch's node other addresses in an instance of the graph.
  void set(GraphExec exec, GraphNode node, uint32_t launch, std::span<const DevicePointer> addresses) const;

 private:
  GraphNode add_node(DeviceGraph graph, std::span<const GraphNode> after, uint32_t launch,
                     std::span<const DevicePointer> addresses) const;
  // Throws DeviceError, which names the launch, where the call failed.
  void check(Result result, const char* call, uint32_t launch) const;

  const Driver& driver_;
  const Executable& executable_;
  LaunchCode& code_;
  LibraryCalls& libraries_;
};

}  // namespace aspen::cuda
