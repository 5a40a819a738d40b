// The Ready Pool (section 3.3): a matrix of FIFO queues of ready tiles, a row for each DSE, a column for each range of depths.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "policy.h"
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

// One word is both the lock of the row and the set of its columns that are not empty, so that a push costs two atomic
// read-modify-writes, a pop one, and a look at a foreign row one load.
class alignas(64) Row {
 public:
  // All tiles of the batch belong to one traversal. Sequentially consistent with `has_work`: see parking.h.
  void push(const Batch& batch) noexcept;

  // The first tile of the lowest column, or null. A thief does not wait where the row is locked: it comes back.
  Node* pop() noexcept;
  Node* steal() noexcept;

  bool has_work() const noexcept { return (word_.load(std::memory_order_seq_cst) & ~kLocked) != 0; }

  // Forgets everything, a held lock too: for the child of a fork.
  void reset() noexcept { word_.store(0, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kLocked = uint64_t{1} << 63;
  static_assert(kColumns <= 63);

  struct Queue {
    Node* first;
    Node* last;
  };

  bool try_lock(uint64_t columns) noexcept;
  Node* pop_locked(uint64_t columns) noexcept;

  std::atomic<uint64_t> word_{0};
  std::array<Queue, kColumns> queues_;  // meaningful where the column's bit is set
};

static_assert(alignof(Row) == 64, "rows share no cache line");

class ReadyPool {
 public:
  // Rows are never taken away again: what a worker leaves behind in its row must be found. Not for two threads at once.
  void ensure_rows(int count);

  Row& row(int index) noexcept { return *rows_[index]; }

  // From the DSE's own row, otherwise from the others in the order of the policy; null if there was nothing to take.
  Node* pop(int self, const Policy& policy) noexcept;

  bool has_work() const noexcept;
  void reset() noexcept;

 private:
  std::array<std::unique_ptr<Row>, kMaxWorkers> rows_;
  std::atomic<int> num_rows_{0};
};

}  // namespace aspen
