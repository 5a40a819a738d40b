#include "ready_pool.h"

#include <algorithm>
#include <bit>

#include "spin.h"

namespace aspen {

bool Row::try_lock(uint64_t columns) noexcept {
  // acquire, with the release of whoever held the lock before.
  return word_.compare_exchange_weak(columns, columns | kLocked, std::memory_order_acquire, std::memory_order_relaxed);
}

void Row::push(const Batch& batch) noexcept {
  const Traversal& traversal = *batch.first->traversal;
  Backoff backoff;
  uint64_t columns = word_.load(std::memory_order_relaxed);
  while ((columns & kLocked) || !try_lock(columns)) {
    backoff.wait();
    columns = word_.load(std::memory_order_relaxed);
  }
  Node* node = batch.first;
  for (int i = 0; i < batch.size; ++i) {
    Node* const next = node->next;
    const int column = traversal.column_of(node);
    Queue& queue = queues_[column];
    if (columns >> column & 1) {
      queue.last->next = node;
    } else {
      queue.first = node;
      columns |= uint64_t{1} << column;
    }
    queue.last = node;
    node = next;
  }
  // seq_cst, with the loads of `has_work`; being a release too, it publishes the queues and what the tiles before them wrote.
  word_.store(columns, std::memory_order_seq_cst);
}

Node* Row::pop() noexcept {
  Backoff backoff;
  for (;;) {
    const uint64_t columns = word_.load(std::memory_order_relaxed);
    if (columns == 0) return nullptr;
    if (!(columns & kLocked) && try_lock(columns)) return pop_locked(columns);
    backoff.wait();
  }
}

Node* Row::steal() noexcept {
  const uint64_t columns = word_.load(std::memory_order_relaxed);
  if (columns == 0 || (columns & kLocked) || !try_lock(columns)) return nullptr;
  return pop_locked(columns);
}

Node* Row::pop_locked(uint64_t columns) noexcept {
  const int column = std::countr_zero(columns);
  Queue& queue = queues_[column];
  Node* const node = queue.first;
  if (node == queue.last) {
    columns &= columns - 1;
  } else {
    queue.first = node->next;
  }
  word_.store(columns, std::memory_order_release);
  return node;
}

void ReadyPool::ensure_rows(int count) {
  for (int i = num_rows_.load(std::memory_order_relaxed); i < count; ++i) {
    rows_[i] = std::make_unique<Row>();
    // release, with the acquire of those who look through all rows.
    num_rows_.store(i + 1, std::memory_order_release);
  }
}

Node* ReadyPool::pop(int self, const Policy& policy) noexcept {
  if (Node* node = rows_[self]->pop()) return node;
  const int rows = num_rows_.load(std::memory_order_acquire);
  for (int attempt = 0; attempt < rows - 1; ++attempt) {
    const int victim = std::clamp(policy.victim(self, attempt, rows), 0, rows - 1);
    if (Node* node = rows_[victim]->steal()) return node;
  }
  return nullptr;
}

bool ReadyPool::has_work() const noexcept {
  const int rows = num_rows_.load(std::memory_order_acquire);
  return std::any_of(rows_.begin(), rows_.begin() + rows, [](const auto& row) { return row->has_work(); });
}

void ReadyPool::reset() noexcept {
  const int rows = num_rows_.load(std::memory_order_relaxed);
  for (int i = 0; i < rows; ++i) rows_[i]->reset();
}

}  // namespace aspen
