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
  Team* team = nullptr;  // who may help it
};

// What a tile that pauses returns.
inline constexpr char kPaused[] = "the tile has paused";

// Computes a tile. Null, or what its kernel says went wrong, or kPaused.
inline const char* compute(const RunState& run, uint32_t tile, std::byte* scratch, const Pulse& pulse,
                           Team* team = nullptr) noexcept {
  const PlannedTile& planned = run.plan().tiles()[tile];
  const RunOp& op = run.op(planned.op);
  return op.run({op.state, op.inputs, op.output, planned.box, planned.box + op.rank, scratch, op.further, &pulse, op.kept, team});
}

// Runs one tile of a run that has not failed. False where the tile has paused.
bool execute(RunState& run, uint32_t tile, const Dse& dse, const Pulse& pulse) noexcept;

// Fails the run if the worker's scratch cannot be made large enough for it.
void ensure_scratch(RunState& run, const Dse& dse) noexcept;

// Walks the path that begins at `head` to its end, or until a run that goes first has a tile to take, or a tile pauses. Returns
// the run if this was its last path, otherwise null; the run may then be gone already. The company says whether a tile that asks
// had better pause (`wants_pause`); `since` is when it asked first, and 0 then.
template <typename Company>
RunState* walk(Node* head, const Dse& dse, const Company& company) noexcept {
  auto& run = static_cast<RunState&>(*head->traversal);
  ensure_scratch(run, dse);
  struct Asked {
    RunState& run;
    const Company& company;
    int64_t since = 0;
  } asked{run, company};
  const Pulse pulse{[](void* context) noexcept {
                      auto& by = *static_cast<Asked*>(context);
                      const Beat beat = by.run.beat();
                      return beat == Beat::kGoOn && by.company.wants_pause(by.run, by.since) ? Beat::kPause : beat;
                    },
                    &asked, kPaused};
  const int64_t walked = walk_path(run, head, company, [&](uint32_t tile) {
    if (run.is_free() || run.may_go_on()) [[likely]]
      return execute(run, tile, dse, pulse);
    return true;
  });
  // The run lives until all tiles are counted, ours included, so everything above could touch it. Where the first one has paused
  // there is none of ours, and it may be gone.
  return walked > 0 && run.finish(walked) ? &run : nullptr;
}

}  // namespace aspen
