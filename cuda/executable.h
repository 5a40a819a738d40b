// A graph and its code, ready for the devices of a process: what the custom call keeps, and what runs without XLA too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "aspen_jax/engine/graph.h"
#include "driver.h"
#include "launch_graph.h"
#include "schedule.h"

namespace aspen::cuda {

// How a graph is given to a device (docs/explanation/gpu.md).
enum class Executor : int32_t {
  kStream,  // launch by launch, to a few streams
  kGraph,   // as one CUDA graph
};

// A workspace up to here is the executable's own: one for each context, for as long as it lives. So it stays where it is, and so
// do the addresses of nearly all nodes of a CUDA graph; nodes whose addresses have changed are uploaded again, 200 us a call on
// an H200. A larger one is the caller's, who shares that memory among all that it runs, and whose run takes too long for the
// upload to matter.
inline constexpr int64_t kLargestKeptWorkspace = int64_t{128} << 20;

struct Code {
  std::vector<std::byte> image;       // a cubin, a fat binary or PTX
  std::vector<int32_t> kernel_of_op;  // op k's kernel is called op<kernel_of_op[k]>
  // Of each op the first of those that are launched with it, whose kernel is the same; empty: all are alone.
  std::vector<int32_t> launched_with = {};
};

class Loaded;

class Executable {
 public:
  // Throws GraphError for bad bytes, std::invalid_argument for code that cannot be the graph's.
  Executable(Graph graph, Code code, Executor executor);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Loads the code into a stream's context, unless that was done before. Throws DeviceError.
  void load(Stream stream);

  // Gives the graph to a stream, or adds it to the CUDA graph that the stream's work is being captured into. `buffers` are
  // addresses on the device: operands, results, workspace. The workspace is used where the run is captured, or where the
  // executable keeps none: a captured run may be replayed at any time, and only who replays it can order that. Returns as soon as
  // all is in the stream's hands. Where it throws DeviceError, which names op and tiles, the stream is usable. May be called from
  // many threads; runs in one context follow each other on the device where the workspace is the executable's.
  void run(Stream stream, std::span<const DevicePointer> buffers);

  const Graph& graph() const { return graph_; }
  bool keeps_workspace() const { return graph_.workspace_bytes > 0 && graph_.workspace_bytes <= kLargestKeptWorkspace; }
  const LaunchGraph& launches() const { return launches_; }
  const Schedule& schedule() const { return schedule_; }
  const Code& code() const { return code_; }
  // For each launch those parents that no other parent waits for.
  const std::vector<std::vector<uint32_t>>& nearest_parents() const { return nearest_parents_; }

  // Where an op's addresses begin among those of all; one more entry than ops. Each has its inputs' (one at least), its output's.
  const std::vector<uint32_t>& first_address() const { return first_address_; }
  // An op's own addresses among those of all.
  std::span<const DevicePointer> addresses_of(size_t op, std::span<const DevicePointer> all) const {
    return all.subspan(first_address_[op], first_address_[op + 1] - first_address_[op]);
  }
  // "tiles 0 to 15 of op 'conv1'"
  std::string describe(uint32_t launch) const;

 private:
  Loaded& loaded(Stream stream);
  std::vector<DevicePointer> addresses(std::span<const DevicePointer> buffers) const;

  Graph graph_;
  Code code_;
  Executor executor_;
  LaunchGraph launches_;
  Schedule schedule_;
  std::vector<std::vector<uint32_t>> nearest_parents_;
  std::vector<uint32_t> first_address_;
  std::mutex mutex_;
  std::map<Context, std::unique_ptr<Loaded>> loaded_;  // guarded by mutex_
};

}  // namespace aspen::cuda
