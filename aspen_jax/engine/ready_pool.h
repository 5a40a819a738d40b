// The Ready Pool (section 3.3): a matrix of FIFO queues of ready tiles, a row for each DSE, a column for each range of depths.
// Each run in it has such a matrix to itself; run_order.h says which run goes first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "policy.h"
#include "run_order.h"
#include "runtime.h"
#include "traversal.h"

namespace aspen {

// Tiles that became ready together, linked through their nodes.
struct Batch {
  Node* first = nullptr;
  Node* last = nullptr;
  int size = 0;

  void add(Node* node) {
    (size++ == 0 ? first : last->next) = node;
    last = node;
  }
};

// The tiles of one run in one row. For one thread at a time.
class alignas(64) Queues {
 public:
  // Empties all columns. Comes first; no constructor does it, so that a row takes memory for as many runs as it has seen at once.
  void clear() noexcept { columns_ = 0; }
  bool is_empty() const noexcept { return columns_ == 0; }

  // All tiles of the batch belong to one traversal.
  void push(const Batch& batch) noexcept;

  // The first tile of the lowest column; there must be one.
  Node* pop() noexcept;

 private:
  struct Queue {
    Node* first;
    Node* last;
  };
  static_assert(kColumns <= 64);

  uint64_t columns_;                    // a bit for each that is not empty
  std::array<Queue, kColumns> queues_;  // meaningful where the column's bit is set
};

// One word is both the lock of the row and the set of the runs that have tiles here, by their slots. So a push costs two atomic
// read-modify-writes, a pop one, and a look at a foreign row one load.
class alignas(64) Row {
 public:
  // All tiles of the batch belong to one traversal. Sequentially consistent with `has_work`: see parking.h.
  void push(const Batch& batch) noexcept;

  // The first run's first tile of its lowest column, or null. A thief does not wait where the row is locked: it comes back.
  Node* pop(const RunOrder& order) noexcept;
  Node* steal(const RunOrder& order) noexcept;
  // The first tile of one run, for a thief, who does not wait either.
  Node* steal_of(int slot) noexcept;

  // The slots of the runs that have tiles here; stale where another thread pushes or pops.
  uint64_t slots() const noexcept { return word_.load(std::memory_order_relaxed) & ~kLocked; }

  bool has_work() const noexcept { return (word_.load(std::memory_order_seq_cst) & ~kLocked) != 0; }

  // Forgets everything, a held lock too: for the child of a fork.
  void reset() noexcept { word_.store(0, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kLocked = uint64_t{1} << 63;
  static_assert(RunOrder::kSlots <= 63);

  bool try_lock(uint64_t slots) noexcept;
  Node* pop_locked(uint64_t slots, int slot) noexcept;

  std::atomic<uint64_t> word_{0};
  std::array<Queues, RunOrder::kSlots> runs_;  // meaningful where the slot's bit is set
};

static_assert(alignof(Row) == 64, "rows share no cache line");

class ReadyPool {
 public:
  // Rows are never taken away again: what a worker leaves behind in its row must be found. Not for two threads at once.
  void ensure_rows(int count);

  Row& row(int index) noexcept { return *rows_[index]; }
  RunOrder& order() noexcept { return order_; }

  // Pushes into the DSE's own row. All tiles of the batch belong to one traversal, and the policy is its.
  void push(int self, const Policy& policy, const Batch& batch) noexcept { row(policy.row_of(self)).push(batch); }

  // Pops from the DSE's own row, otherwise from the others in the order of the policy; null if there was nothing to take. Of
  // several runs, it takes the one that goes first among those that have tiles in the rows looked at.
  Node* pop(int self, const Policy& policy) noexcept;

  // Whether a DSE that walks this run would do better to pop. Asked after every tile.
  bool is_overtaken(int self, const Traversal& run, const Policy& policy) const noexcept {
    return order_.has_many() && has_tile_ahead(self, run, policy);
  }

  bool has_work() const noexcept;
  void reset() noexcept;

 private:
  // Rows besides its own where a DSE looks for runs that go first. Each look may be a cache miss, at the end of every tile. All
  // DSEs look, each elsewhere, so that with more workers than this no row is overlooked for longer than a tile.
  static constexpr int kLooks = 8;

  bool has_tile_ahead(int self, const Traversal& run, const Policy& policy) const noexcept;
  Node* pop_of_first_run(int self, const Policy& policy) noexcept;
  Row& victim(int self, int attempt, int rows, const Policy& policy) const noexcept;

  std::array<std::unique_ptr<Row>, kMaxWorkers> rows_;
  std::atomic<int> num_rows_{0};
  RunOrder order_;
};

}  // namespace aspen
