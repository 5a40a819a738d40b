// How a DSE walks its path through the graph in real time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithm1.h"
#include "arena.h"
#include "run_state.h"

namespace aspen {

// The worker as the tiles it executes see it.
struct Dse {
  Arena& scratch;
  int worker;
};

// Computes a tile. Null, or what its kernel says went wrong.
inline const char* compute(const RunState& run, uint32_t tile, std::byte* scratch) noexcept {
  const PlannedTile& planned = run.plan().tiles()[tile];
  const RunOp& op = run.op(planned.op);
  return op.run({op.state, op.inputs, op.output, planned.box, planned.box + op.rank, scratch, op.further, run.pulse()});
}

// Runs one tile of a run that has not failed.
void execute(RunState& run, uint32_t tile, const Dse& dse) noexcept;

// Fails the run if the worker's scratch cannot be made large enough for it.
void ensure_scratch(RunState& run, const Dse& dse) noexcept;

// Walks the path that begins at `head` to its end, or until a run that goes first has a tile to take. Returns the run if this was
// its last path, otherwise null; the run may then be gone already.
template <typename Company>
RunState* walk(Node* head, const Dse& dse, const Company& company) noexcept {
  auto& run = static_cast<RunState&>(*head->traversal);
  ensure_scratch(run, dse);
  const int64_t walked = walk_path(run, head, company, [&](uint32_t tile) {
    if (run.is_free() || run.may_go_on()) [[likely]]
      execute(run, tile, dse);
  });
  // The run lives until all tiles are counted, ours included, so everything above could touch it.
  return run.finish(walked) ? &run : nullptr;
}

}  // namespace aspen
