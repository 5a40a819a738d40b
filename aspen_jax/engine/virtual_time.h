// Simulated time: DSEs walk a graph by the engine's own Algorithm 1, Ready Pool and policies, and each tile takes a given time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy.h"
#include "transfers.h"
#include "virtual_graph.h"
#include "virtual_machine.h"

namespace aspen {

// A tile, the lane that ran it, and when, in nanoseconds since the run began.
struct Placed {
  uint32_t tile;
  int lane;
  int64_t begin;
  int64_t end;
};

struct Simulation {
  std::vector<Placed> tiles;  // in the order in which they begin
  std::vector<Copy> copies;   // in the order in which they were asked for
};

// The resource of a tile that has become ready; called once a tile. What it throws ends the simulation.
using PlaceTile = std::function<int(uint32_t tile, int64_t now)>;

// Throws std::invalid_argument for another number of times than tiles x resources, or a negative one.
void check_times(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds);

// A run. A tile takes nanoseconds[tile][resource]: kNever or more where a resource has no kernel for it. What the engine does
// between tiles takes no time. An idle lane takes up a tile at the moment in which it is pushed; of several the one with the
// lowest number does.
//
// With `place` each resource has a Ready Pool of its own, and what a tile reads is copied, while lanes compute, before it gets
// there. Without it all lanes share one, and a lane waits for what it has taken up. Throws std::invalid_argument where a tile
// comes to a resource that there is not, or that has no kernel for it.
Simulation simulate(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds,
                    const Policy& policy = kShallowFirst, const PlaceTile& place = {});

}  // namespace aspen
