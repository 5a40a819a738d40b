// The ready tiles of lanes that share them, as the scheduling lab keeps them: in a Ready Pool, or by an exact order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "policy.h"
#include "ready_pool.h"
#include "traversal.h"

namespace aspen {

// Tiles of one traversal, the lowest level first, and of one level the lowest number.
class TileHeap {
 public:
  // The level of each tile; they must outlive the heap.
  TileHeap(Traversal& traversal, std::span<const int32_t> levels) : traversal_(traversal), levels_(levels) {}

  // Room for all tiles, so that a push allocates nothing.
  void reserve() { keys_.reserve(levels_.size()); }

  void push(const Batch& batch) {
    const std::lock_guard lock(mutex_);
    const Node* node = batch.first;
    for (int i = 0; i < batch.size; ++i, node = node->next) {
      const uint32_t tile = traversal_.tile_of(node);
      keys_.push_back(uint64_t{static_cast<uint32_t>(levels_[tile])} << 32 | tile);
      std::ranges::push_heap(keys_, std::greater<>());
    }
    publish();
  }

  Node* pop() {
    const std::lock_guard lock(mutex_);
    if (keys_.empty()) return nullptr;
    std::ranges::pop_heap(keys_, std::greater<>());
    const auto tile = static_cast<uint32_t>(keys_.back());
    keys_.pop_back();
    publish();
    return &traversal_.node(tile);
  }

  bool has_work() const noexcept { return size_.load(std::memory_order_seq_cst) > 0; }

 private:
  // seq_cst, with `has_work`: see parking.h.
  void publish() { size_.store(keys_.size(), std::memory_order_seq_cst); }

  Traversal& traversal_;
  const std::span<const int32_t> levels_;
  std::mutex mutex_;
  std::vector<uint64_t> keys_;  // level, then number
  std::atomic<size_t> size_{0};
};

// A row for each lane, unless the policy is exact.
class ReadyTiles {
 public:
  ReadyTiles(const Policy& policy, int rows, Traversal& traversal, std::span<const int32_t> levels)
      : policy_(policy), heap_(traversal, levels) {
    policy.is_exact ? heap_.reserve() : pool_.ensure_rows(rows);
  }

  void push(int row, const Batch& batch) { policy_.is_exact ? heap_.push(batch) : pool_.push(row, policy_, batch); }
  Node* pop(int row) { return policy_.is_exact ? heap_.pop() : pool_.pop(row, policy_); }
  bool has_work() const noexcept { return policy_.is_exact ? heap_.has_work() : pool_.has_work(); }

 private:
  const Policy& policy_;
  ReadyPool pool_;
  TileHeap heap_;
};

}  // namespace aspen
