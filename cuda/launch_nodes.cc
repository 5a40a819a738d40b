#include "launch_nodes.h"

#include <string>

#include "executable.h"
#include "launch_code.h"
#include "library_calls.h"

namespace aspen::cuda {

std::vector<GraphNode> LaunchNodes::add(DeviceGraph graph, std::span<const GraphNode> before,
                                        std::span<const DevicePointer> addresses, Edges edges) const {
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

// Nodes have copies of recorded graphs, which end with the calls.
GraphNode LaunchNodes::add_node(DeviceGraph graph, std::span<const GraphNode> after, uint32_t launch,
                                std::span<const DevicePointer> addresses) const {
  GraphNode node = nullptr;
  if (libraries_.contains(launch)) {
    const Result result =
        driver_.cuGraphAddChildGraphNode(&node, graph, after.data(), after.size(), libraries_.record(launch, addresses).get());
    check(result, "cuGraphAddChildGraphNode", launch);
  } else {
    const KernelNodeParams params = code_.params(launch, addresses);
    check(driver_.cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &params), "cuGraphAddKernelNode", launch);
  }
  return node;
}

void LaunchNodes::set(GraphExec exec, GraphNode node, uint32_t launch, std::span<const DevicePointer> addresses) const {
  if (libraries_.contains(launch)) {
    const Result result = driver_.cuGraphExecChildGraphNodeSetParams(exec, node, libraries_.record(launch, addresses).get());
    check(result, "cuGraphExecChildGraphNodeSetParams", launch);
  } else {
    const KernelNodeParams params = code_.params(launch, addresses);
    check(driver_.cuGraphExecKernelNodeSetParams(exec, node, &params), "cuGraphExecKernelNodeSetParams", launch);
  }
}

void LaunchNodes::check(Result result, const char* call, uint32_t launch) const {
  if (result != kSuccess) driver_.check(result, (std::string(call) + " for " + executable_.describe(launch)).c_str());
}

}  // namespace aspen::cuda
