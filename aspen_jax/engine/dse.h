// How a DSE walks its path through the graph in real time.
#pragma once

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
  const Policy policy = run.policy();
  int64_t walked = 0;
  ChildCache cache;
  for (uint32_t tile = run.tile_of(head); tile != kNoTile; tile = finished(run, policy, tile, cache, company)) {
    if (walked > 0 && company.is_overtaken(run)) [[unlikely]] {
      Batch rest;
      for (; tile != kNoTile; tile = cache.pop()) rest.add(&run.node(tile));
      company.push(rest);
      break;
    }
    if (run.is_free() || run.may_go_on()) [[likely]]
      execute(run, tile, dse);
    ++walked;
  }
  // The run lives until all tiles are counted, ours included, so everything above could touch it.
  return run.finish(walked) ? &run : nullptr;
}

}  // namespace aspen
