// What changes while a plan runs: counters, buffers' addresses, workspace. Everything else is in the Plan and is never written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "arena.h"
#include "arrivals.h"
#include "failure.h"
#include "kernel.h"
#include "limits.h"
#include "observer.h"
#include "plan.h"
#include "policy.h"
#include "selection.h"
#include "traversal.h"

namespace aspen {

// An op with the addresses of this run.
struct RunOp {
  RunTile run;
  const OpState* state;
  const void* const* inputs;
  void* output;
  void* const* further;
  std::byte* kept;
  int rank;
};

class RunStateCache;

class RunState final : public Traversal {
 public:
  // Throws std::bad_alloc.
  explicit RunState(const Plan& plan);

  // What a run brings along.
  struct Call {
    std::shared_ptr<const Plan> plan;
    std::function<void(const Failure&)> done;
    std::shared_ptr<Observer> observer;
    const Policy* policy = nullptr;
    uint64_t id = 0;
    int64_t key = 0, due = 0;                            // run_order.h
    std::shared_ptr<const Arrivals> arrivals = nullptr;  // null where all operands are there
    // Where the run's state comes from and goes back to before `done` is called; the plan's own cache if null.
    RunStateCache* states = nullptr;
    std::shared_ptr<const Selection> selection = nullptr;  // null: all tiles
    std::shared_ptr<Watch> watch = nullptr;                // null: the run goes on to its last tile
  };

  // Resets the counters and resolves addresses; allocates nothing.
  void start(Call call, std::span<const void* const> operands, std::span<void* const> results) noexcept;

  const Plan& plan() const { return plan_; }
  Observer* observer() const { return call_.observer.get(); }
  uint64_t id() const { return call_.id; }
  int64_t key() const { return call_.key; }
  int64_t due() const { return call_.due; }
  const Arrivals* arrivals() const { return call_.arrivals.get(); }
  const RunOp& op(uint32_t index) const { return ops_[index]; }

  std::span<const int32_t> roots() const { return call_.selection == nullptr ? plan_.roots() : call_.selection->roots; }
  size_t num_tiles() const { return call_.selection == nullptr ? plan_.num_tiles() : call_.selection->num_tiles; }

  // Whether the next tile is run; where it is not, `may_go_on` may still say so.
  bool is_free() const { return course_.load(std::memory_order_relaxed) == Course::kFree; }

  // Fails the run where its watch says that it is over.
  bool may_go_on() noexcept {
    if (course_.load(std::memory_order_relaxed) == Course::kFailed) return false;
    if (!call_.watch->is_over()) return true;
    fail([&] { return call_.watch->why(); });
    return false;
  }
  // What a tile is told that nobody wants to pause.
  Beat beat() noexcept { return is_free() || may_go_on() ? Beat::kGoOn : Beat::kEnd; }
  Watch* watch() const { return call_.watch.get(); }

  // The first failure is the one reported, with the message that `describe` makes; the tiles left are then walked through without
  // being executed. False where another one was first.
  template <typename Describe>
  bool fail(const Describe& describe, Failure::Kind kind = Failure::Kind::kFailed) noexcept {
    // Relaxed will do: whoever runs a child of the tile that failed has synchronised on the child's counter since, and the
    // message is read after the last `finish`.
    if (course_.exchange(Course::kFailed, std::memory_order_relaxed) == Course::kFailed) return false;
    failure_ = Failure(kind, describe);
    return true;
  }

  // Counts tiles, and pieces that have arrived, as walked through; true for the one caller who counted the last.
  bool finish(int64_t tiles) {
    // acq_rel: whoever counts the last tile sees the results, and the error, of all who counted before.
    return tiles_left_.fetch_sub(tiles, std::memory_order_acq_rel) == tiles;
  }

  RunState* next_waiting = nullptr;  // for a slot: Runtime::Impl::admit

  // What the run brought along, and whether it failed; taken after the last tile.
  Call take_call() { return std::move(call_); }
  Failure take_failure() noexcept { return std::exchange(failure_, {}); }

 private:
  // One byte, so that a tile of a run that nobody watches asks no more than whether another one failed.
  enum class Course : uint8_t { kFree, kWatched, kFailed };

  const Plan& plan_;
  std::vector<RunOp> ops_;
  std::vector<const void*> inputs_;
  std::vector<void*> further_;
  Arena workspace_;
  Call call_;
  Failure failure_;
  // Written by all workers at the end of each path, so it has a cache line of its own.
  alignas(64) std::atomic<int64_t> tiles_left_{0};
  alignas(64) std::atomic<Course> course_{Course::kFree};
};
static_assert(alignof(RunState) == 64);

// Finished run states of a plan, waiting for its next runs. A fixed number of slots without a lock: it cannot be left locked by
// a fork, and bounds the memory that a burst of runs leaves behind.
class RunStateCache {
 public:
  ~RunStateCache();

  // One that is waiting, or a new one (throws std::bad_alloc).
  std::unique_ptr<RunState> take(const Plan& plan);
  void keep(std::unique_ptr<RunState> state) noexcept;

 private:
  static constexpr size_t kSlots = 16;
  std::array<std::atomic<RunState*>, kSlots> slots_{};
};

}  // namespace aspen
