// Runs of the scheduling lab: each ready tile goes where a policy says, on threads that the runtime lends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "limits.h"
#include "plan.h"
#include "policy.h"
#include "virtual_graph.h"
#include "virtual_machine.h"
#include "virtual_time.h"

namespace aspen {

// A run that ended with an error.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What lanes of a resource do with a tile.
struct LaneKind {
  int repeat = 1;          // how often they run it; where an op rewrites what it reads they run it once, and wait for the rest
  std::vector<int> cores;  // on which they may be; empty: all
};

// What the calling thread does while lanes are at work. All may be left out.
struct Attendant {
  std::function<void()> attend;    // called again and again; it may wait. What it throws ends the run
  std::function<void()> over;      // called by a lane when the run is over, so that nobody need wait
  std::function<bool()> is_lost;   // when `attend` has thrown: whether a lane will not come back
  std::function<void()> given_up;  // a lane was lost. All that the run was given must outlive the process
};

// What graph.run does, as a machine of the lab would: the same Algorithm 1, Ready Pools and places as in `simulate`, but tiles
// take the time that they take. Times count from the moment in which the lanes start, when the roots are queued.
//
// The first memory is the caller's. Every other is an arena of its own, and copies keep to the pace of the links; with more than
// one memory all begin as NaN, so that a copy that is missing shows in the results, and no two values that ops write may share
// bytes. `place` may be called by many threads at once; without it there must be one memory. `kinds` has an entry for each
// resource. A run that is watched ends as the runtime's do, and its copies hurry then.
//
// Throws std::invalid_argument where something does not fit, RunError where a tile fails, std::system_error where there are no
// threads, and what `place` or the attendant throws; no thread is in the run then unless a lane was given up.
Simulation run_placed(std::shared_ptr<const Plan> plan, std::span<const void* const> operands, std::span<void* const> results,
                      const VirtualGraph& graph, const VirtualMachine& machine, std::span<const LaneKind> kinds,
                      const Policy& policy = kShallowFirst, const PlaceTile& place = {}, const Attendant& attendant = {},
                      std::shared_ptr<Watch> watch = nullptr);

}  // namespace aspen
