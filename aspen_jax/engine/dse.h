// Algorithm 1 (section 3.2): how a DSE walks its path through the graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "arena.h"
#include "ready_pool.h"
#include "run_state.h"

namespace aspen {

// The worker as the tiles it executes see it.
struct Dse {
  Row& row;
  Arena& scratch;
  int worker;
};

// Runs one tile of a run that has not failed.
void execute(RunState& run, uint32_t tile, const Dse& dse) noexcept;

// Fails the run if the worker's scratch cannot be made large enough for it.
void ensure_scratch(RunState& run, const Dse& dse) noexcept;

// Company of a run that a single thread walks from begin to end: no atomics, nobody to wake.
struct Alone {
  static bool is_last_parent(uint32_t& parents_left) noexcept { return --parents_left == 0; }
  static void pushed(int) noexcept {}
  static bool leaving() noexcept { return false; }
};

// The counter of a child when several DSEs walk the run.
inline bool is_last_parent_of_shared(uint32_t& parents_left) noexcept {
  const std::atomic_ref<uint32_t> counter(parents_left);
  // Each decrement releases what its tile wrote, and continues the release sequence of those before; whoever reads the last
  // value acquires from all of them. Reading 1 means that every other parent has been counted and nobody else will come, so the
  // last parent, which for many tiles is the only one, need not write.
  return counter.load(std::memory_order_acquire) == 1 || counter.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

// Walks the path that begins at `head` to its end. Returns the run if this was its last path, otherwise null; the run may then be
// gone already.
template <typename Company>
RunState* walk(Node* head, const Dse& dse, const Company& company) noexcept {
  constexpr uint32_t kNone = ~uint32_t{0};
  RunState& run = *head->run;
  const Plan& plan = run.plan();
  const PlannedTile* const tiles = plan.tiles().data();
  const int32_t* const children = plan.graph().children.data();
  const auto prefer = run.policy().prefer;
  const bool keeps_child = run.policy().keeps_child;
  ensure_scratch(run, dse);

  int64_t walked = 0;
  for (uint32_t tile = run.tile_of(head);;) {
    if (!run.failed()) [[likely]]
      execute(run, tile, dse);
    ++walked;
    uint32_t kept = kNone;
    Batch others;
    for (uint32_t i = tiles[tile].first_child; i < tiles[tile + 1].first_child; ++i) {
      auto child = static_cast<uint32_t>(children[i]);
      if (!company.is_last_parent(run.parents_left(child))) continue;
      if (kept == kNone) {
        kept = child;
        continue;
      }
      if (prefer != nullptr && prefer(plan, static_cast<int32_t>(child), static_cast<int32_t>(kept))) std::swap(child, kept);
      others.add(&run.node(child));
    }
    if (kept != kNone && (!keeps_child || company.leaving())) [[unlikely]] {
      others.add(&run.node(kept));
      kept = kNone;
    }
    if (others.size > 0) {
      dse.row.push(others, run);
      company.pushed(others.size);
    }
    if (kept == kNone) break;
    tile = kept;
  }
  // The run lives until all tiles are counted, ours included, so everything above could touch it.
  return run.finish(walked) ? &run : nullptr;
}

}  // namespace aspen
