#include "replay_graph.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "executable.h"
#include "launch_code.h"
#include "library_calls.h"

namespace aspen::cuda {
namespace {

constexpr const char* kProgrammaticVariable = "ASPEN_CUDA_PROGRAMMATIC";

bool wants_programmatic() {
  const char* const text = std::getenv(kProgrammaticVariable);
  const std::string wanted = text == nullptr ? "on" : text;
  if (wanted == "on" || wanted == "off") return wanted == "on";
  throw DeviceError(std::string(kProgrammaticVariable) + "='" + wanted + "' is no choice; set it to 'on' or 'off'");
}

}  // namespace

ReplayGraph::ReplayGraph(const HomeContext& home, const Executable& executable, LaunchCode& code, const LibraryCalls& libraries,
                         const LaunchNodes& launch_nodes)
    : home_(home),
      driver_(home.driver()),
      executable_(executable),
      code_(code),
      libraries_(libraries),
      launch_nodes_(launch_nodes),
      is_programmatic_(wants_programmatic() && driver_.cuGraphAddDependencies != nullptr && code.kernels_wait()),
      graph_(home) {
  instances_.reserve(kMostInstances);
}

void ReplayGraph::replay(Stream stream, std::span<const DevicePointer> addresses) {
  const auto same = [&](const Instance& instance) { return std::ranges::equal(instance.addresses, addresses); };
  const auto found = std::ranges::find_if(instances_, same);
  if (found == instances_.end()) {
    make_instance(stream, addresses);
  } else {
    std::rotate(instances_.begin(), found, found + 1);
  }
  driver_.check(driver_.cuGraphLaunch(instances_.front().exec.get(), stream), "cuGraphLaunch");
}

void ReplayGraph::make_instance(Stream stream, std::span<const DevicePointer> addresses) {
  code_.encode_maps(addresses);
  if (graph_.get() == nullptr) make_graph(addresses);
  Instance instance{Owned<&Driver::cuGraphExecDestroy>(home_), {}};
  const bool is_new = instances_.size() < kMostInstances;
  if (is_new) {
    instance.addresses = addresses_;
    check_graph(instance.exec.take(driver_.cuGraphInstantiate, graph_.get(), 0), "cuGraphInstantiate");
  } else {
    instance = std::move(instances_.back());
    instances_.pop_back();
  }
  // Where this throws, the instance is destroyed: some of its nodes may have changed, others not.
  set_nodes(instance, addresses);
  // Here, so that a device without room for it is named, and a launch is but a launch.
  if (is_new) driver_.check(driver_.cuGraphUpload(instance.exec.get(), stream), "cuGraphUpload");
  instances_.insert(instances_.begin(), std::move(instance));  // there is room, so this does not throw
}

void ReplayGraph::make_graph(std::span<const DevicePointer> addresses) {
  Owned<&Driver::cuGraphDestroy> graph(home_);
  driver_.check(graph.take(driver_.cuGraphCreate, 0), "cuGraphCreate");
  const auto edges = is_programmatic_ ? LaunchNodes::Edges::kNone : LaunchNodes::Edges::kFull;
  nodes_ = launch_nodes_.add(graph.get(), {}, addresses, edges);
  if (is_programmatic_) add_programmatic_edges(graph.get());
  addresses_.assign(addresses.begin(), addresses.end());
  graph_ = std::move(graph);
}

// A launch that starts early waits in its kernel until its parents are over. They waited for theirs, and so on: see
// kernels/launch_order.h. Its own nodes have no other edges, and nothing in a graph of ours comes before the first. Only kernels
// of ours wait so: what a library computes begins when its parents are over, and its children when it is.
void ReplayGraph::add_programmatic_edges(DeviceGraph graph) const {
  const auto& parents = executable_.nearest_parents();
  std::vector<GraphNode> from, to;
  std::vector<EdgeData> data;
  for (uint32_t launch = 0; launch < parents.size(); ++launch) {
    for (const uint32_t parent : parents[launch]) {
      from.push_back(nodes_[parent]);
      to.push_back(nodes_[launch]);
      const bool waits = !libraries_.contains(parent) && !libraries_.contains(launch);
      data.push_back(waits ? EdgeData{kProgrammaticPort, 0, kProgrammaticEdge, {}} : EdgeData{});
    }
  }
  check_graph(driver_.cuGraphAddDependencies(graph, from.data(), to.data(), data.data(), from.size()), "cuGraphAddDependencies");
}

void ReplayGraph::check_graph(Result result, const char* call) const {
  if (is_programmatic_ && result != kSuccess && result != kOutOfMemory) {
    throw DeviceError(
        std::string(call) + " failed with " + driver_.name_of(result) + "; set " + kProgrammaticVariable +
        "=off, for graphs whose launches do not start early, and start again, or run on the CPU (JAX_PLATFORMS=cpu)");
  }
  driver_.check(result, call);
}

// Weights stay where they are, and so does the workspace: so only a few nodes change.
void ReplayGraph::set_nodes(Instance& instance, std::span<const DevicePointer> addresses) const {
  const auto is_new = [&](uint32_t op) {
    return !std::ranges::equal(executable_.addresses_of(op, addresses), executable_.addresses_of(op, instance.addresses));
  };
  for (uint32_t launch = 0; launch < nodes_.size(); ++launch) {
    if (!std::ranges::any_of(executable_.launches().ops_of(launch), is_new)) continue;
    launch_nodes_.set(instance.exec.get(), nodes_[launch], launch, addresses);
  }
  instance.addresses.assign(addresses.begin(), addresses.end());
}

}  // namespace aspen::cuda
