// A traversal of the launch graph by DSEs with a stream each, written down: the same every time, so that it can be issued again
// and again, recorded into a CUDA graph, and proved.
#pragma once

#include <cstdint>
#include <vector>

#include "launch_graph.h"

namespace aspen::cuda {

struct Command {
  enum class Kind : uint8_t {
    kLaunch,  // index is a launch
    kRecord,  // index is an event, which from now on stands for all that the stream was given so far
    kWait,    // index is an event; what the stream is given from now on waits for it
  };
  Kind kind;
  uint32_t stream;
  uint32_t index;
  friend bool operator==(const Command&, const Command&) = default;
};

// Stream 0 is the caller's. Other streams begin by waiting for what it was given before, and it ends by waiting for them all:
// what is issued to it later comes after everything here. Each event is recorded once, before any wait for it.
struct Schedule {
  uint32_t num_streams = 1;
  uint32_t num_events = 0;
  std::vector<Command> commands;
};

// What a launch costs on the device, as far as the traversal must know.
struct DeviceModel {
  int64_t launch_ns = 2'000;  // from one launch to the next on one stream
  int64_t num_sms = 132;
};

// What executors pass to `traverse`.
inline constexpr uint32_t kNumStreams = 4;

// Algorithm 1 (section 3.2) with as many DSEs as streams: each keeps the first child that becomes ready on its stream and puts
// the others into its row of the Ready Pool, shallow first; one whose path has ended takes from its own row, then from others'.
// Streams wait for each other only where nothing that they waited for already implies it. Throws std::invalid_argument for no
// stream.
Schedule traverse(const Graph& graph, const LaunchGraph& launches, uint32_t num_streams, const DeviceModel& model = {});

}  // namespace aspen::cuda
