#include "ready_pool.h"

#include <algorithm>
#include <bit>

#include "spin.h"

namespace aspen {

void Queues::push(const Batch& batch) noexcept {
  const Traversal& traversal = *batch.first->traversal;
  uint64_t columns = columns_;
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
  columns_ = columns;
}

Node* Queues::pop() noexcept {
  Queue& queue = queues_[std::countr_zero(columns_)];
  Node* const node = queue.first;
  if (node == queue.last) {
    columns_ &= columns_ - 1;
  } else {
    queue.first = node->next;
  }
  return node;
}

bool Row::try_lock(uint64_t slots) noexcept {
  // acquire, with the release of whoever held the lock before.
  return word_.compare_exchange_weak(slots, slots | kLocked, std::memory_order_acquire, std::memory_order_relaxed);
}

void Row::push(const Batch& batch) noexcept {
  const int slot = batch.first->traversal->slot();
  Backoff backoff;
  uint64_t slots = word_.load(std::memory_order_relaxed);
  while ((slots & kLocked) || !try_lock(slots)) {
    backoff.wait();
    slots = word_.load(std::memory_order_relaxed);
  }
  Queues& queues = runs_[slot];
  if (!(slots >> slot & 1)) queues.clear();
  queues.push(batch);
  // seq_cst, with the loads of `has_work`; being a release too, it publishes the queues and what the tiles before them wrote.
  word_.store(slots | uint64_t{1} << slot, std::memory_order_seq_cst);
}

Node* Row::pop(const RunOrder& order) noexcept {
  Backoff backoff;
  for (;;) {
    const uint64_t slots = word_.load(std::memory_order_relaxed);
    if (slots == 0) return nullptr;
    if (!(slots & kLocked) && try_lock(slots)) return pop_locked(slots, order.first_of(slots));
    backoff.wait();
  }
}

Node* Row::steal(const RunOrder& order) noexcept {
  const uint64_t slots = word_.load(std::memory_order_relaxed);
  if (slots == 0 || (slots & kLocked) || !try_lock(slots)) return nullptr;
  return pop_locked(slots, order.first_of(slots));
}

Node* Row::steal_of(int slot) noexcept {
  const uint64_t slots = word_.load(std::memory_order_relaxed);
  if (!(slots >> slot & 1) || (slots & kLocked) || !try_lock(slots)) return nullptr;
  return pop_locked(slots, slot);
}

Node* Row::pop_locked(uint64_t slots, int slot) noexcept {
  Queues& queues = runs_[slot];
  Node* const node = queues.pop();
  if (queues.is_empty()) slots &= ~(uint64_t{1} << slot);
  word_.store(slots, std::memory_order_release);
  return node;
}

void ReadyPool::ensure_rows(int count) {
  for (int i = num_rows_.load(std::memory_order_relaxed); i < count; ++i) {
    rows_[i] = std::make_unique_for_overwrite<Row>();
    // release, with the acquire of those who look through all rows.
    num_rows_.store(i + 1, std::memory_order_release);
  }
}

Row& ReadyPool::victim(int self, int attempt, int rows, const Policy& policy) const noexcept {
  return *rows_[std::clamp(policy.victim(self, attempt, rows), 0, rows - 1)];
}

Node* ReadyPool::pop(int self, const Policy& policy) noexcept {
  if (order_.has_many()) [[unlikely]] {
    if (Node* node = pop_of_first_run(self, policy)) return node;
  }
  if (Node* node = rows_[policy.row_of(self)]->pop(order_)) return node;
  const int rows = num_rows_.load(std::memory_order_acquire);
  for (int attempt = 0; attempt < rows - 1; ++attempt) {
    if (Node* node = victim(self, attempt, rows, policy).steal(order_)) return node;
  }
  return nullptr;
}

// Null also where another DSE was faster.
Node* ReadyPool::pop_of_first_run(int self, const Policy& policy) noexcept {
  Row* found = nullptr;
  int first = RunOrder::kNoSlot;
  const auto look_at = [&](Row& row) {
    const uint64_t slots = row.slots();
    if (slots == 0) return;
    const int slot = order_.first_of(slots);
    if (found != nullptr && !order_.is_ahead(slot, first)) return;
    found = &row;
    first = slot;
  };
  look_at(*rows_[self]);
  const int rows = num_rows_.load(std::memory_order_acquire), looks = std::min(kLooks, rows - 1);
  for (int attempt = 0; attempt < looks; ++attempt) look_at(victim(self, attempt, rows, policy));
  return found == nullptr ? nullptr : found->steal_of(first);
}

bool ReadyPool::has_tile_ahead(int self, const Traversal& run, const Policy& policy) const noexcept {
  const uint64_t ahead = order_.ahead_of(run.slot());
  if (ahead == 0) return false;
  if (rows_[self]->slots() & ahead) return true;
  const int rows = num_rows_.load(std::memory_order_acquire), looks = std::min(kLooks, rows - 1);
  for (int attempt = 0; attempt < looks; ++attempt) {
    if (victim(self, attempt, rows, policy).slots() & ahead) return true;
  }
  return false;
}

bool ReadyPool::has_work() const noexcept {
  const int rows = num_rows_.load(std::memory_order_acquire);
  return std::any_of(rows_.begin(), rows_.begin() + rows, [](const auto& row) { return row->has_work(); });
}

void ReadyPool::reset() noexcept {
  const int rows = num_rows_.load(std::memory_order_relaxed);
  for (int i = 0; i < rows; ++i) rows_[i]->reset();
  order_.reset();
}

}  // namespace aspen
