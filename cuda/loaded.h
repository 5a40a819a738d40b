// An executable loaded into one context of the device: its code, its workspace, and the streams, events and CUDA graph that run
// it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "driver.h"
#include "launch_code.h"
#include "launch_nodes.h"
#include "library_calls.h"
#include "owned.h"
#include "replay_graph.h"

namespace aspen::cuda {

class Executable;
enum class Executor : int32_t;

class Loaded {
 public:
  // The context is current. Throws DeviceError.
  Loaded(const Driver& driver, const Executable& executable, Context context);
  ~Loaded() { home_.close(); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  // Streams, events and CUDA graphs are used by one run at a time; while it is issued, not until it has run: on the device a run
  // waits for the one before.
  std::mutex& mutex() { return mutex_; }
  Context context() const { return home_.context(); }
  // The workspace that all runs share but captured ones; 0 where each is given its own (Executable::keeps_workspace).
  DevicePointer workspace() const { return workspace_.get(); }

  // Each gives a whole run to a stream of the context, which is current. `addresses` are those of all ops. Throw DeviceError.
  void run(Stream stream, Executor executor, std::span<const DevicePointer> addresses);
  // The stream's work is being captured into `graph`, and comes after `before` there.
  void add_to_capture(Stream stream, DeviceGraph graph, std::span<const GraphNode> before,
                      std::span<const DevicePointer> addresses);

 private:
  friend class StreamLauncher;

  void take_workspace();
  void make_streams();
  void issue_to_streams(Stream stream, std::span<const DevicePointer> addresses);
  // The run has given all to the stream.
  Result record_run(Stream stream) noexcept;

  const Driver& driver_;
  const Executable& executable_;
  std::mutex mutex_;
  HomeContext home_;
  // What comes first is given back last.
  LaunchCode code_;
  Owned<&Driver::cuMemFree> workspace_;
  LibraryCalls libraries_;
  const LaunchNodes launch_nodes_;
  Owned<&Driver::cuEventDestroy> last_run_;               // the end of the one that uses the workspace last
  std::vector<Owned<&Driver::cuStreamDestroy>> streams_;  // all but the caller's
  std::vector<Owned<&Driver::cuEventDestroy>> events_;
  std::optional<ReplayGraph> replay_graph_;  // always one: it is made when the code is prepared
};

}  // namespace aspen::cuda
