// Which of the runs in the Ready Pool goes first.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace aspen {

// A run is *due* at the time of its arrival plus its run key, in nanoseconds. The run that is due first goes first.
//
// Each run in the pool has a slot, and under it queues of its own in each row. It keeps the slot until its last tile has run. So
// a run that comes or ends moves no tile: it only changes which slot DSEs look at first, and a run has all columns to itself.
//
// A run with a tile that takes long is due anew now and then, as if it had just arrived, and the tile pauses for who goes first.
//
// Nobody starves. A run goes before another only if it is due earlier, so with keys a and b only if it arrives less than b - a
// after it. Runs of equal keys go in the order of their arrival. What is promised is the order in which tiles are taken up; a
// DSE looks for an earlier run at the end of each tile, so a tile that has begun delays it by no more than its own length.
//
// At most kSlots runs are in the pool. The others wait outside in the same order (Runtime::Impl::admit).
class RunOrder {
 public:
  static constexpr int kSlots = 63;
  static constexpr int kNoSlot = -1;

  // A slot that was free, or kNoSlot. Neither this nor `leave` is for two threads at once.
  int enter(int64_t due) noexcept {
    const uint64_t slots = slots_.load(std::memory_order_relaxed);
    const int slot = std::countr_one(slots);
    if (slot == kSlots) return kNoSlot;
    // Relaxed, as all accesses here. Whoever finds a tile in a row that it has locked sees when the tile's run is due, because
    // the push released the row after this. Whoever looks without the lock may read what was or will be true of the slot. Then
    // it takes up another tile first, and no tile is lost.
    due_[slot].store(due, std::memory_order_relaxed);
    slots_.store(slots | uint64_t{1} << slot, std::memory_order_relaxed);
    return slot;
  }

  // Makes a run with a slot due at another time. Relaxed, as above.
  void renew(int slot, int64_t due) noexcept { due_[slot].store(due, std::memory_order_relaxed); }

  void leave(int slot) noexcept {
    slots_.store(slots_.load(std::memory_order_relaxed) & ~(uint64_t{1} << slot), std::memory_order_relaxed);
  }

  bool is_empty() const noexcept { return slots_.load(std::memory_order_relaxed) == 0; }

  // Whether there is any order to keep; asked after every tile.
  bool has_many() const noexcept { return !is_single(slots_.load(std::memory_order_relaxed)); }

  bool is_ahead(int slot, int other) const noexcept { return due(slot) < due(other); }

  // The slots of runs that go before this slot's.
  uint64_t ahead_of(int slot) const noexcept {
    uint64_t ahead = 0;
    for (uint64_t rest = slots_.load(std::memory_order_relaxed); rest != 0; rest &= rest - 1) {
      if (is_ahead(std::countr_zero(rest), slot)) ahead |= rest & -rest;
    }
    return ahead;
  }

  // The slot that goes first, of a set that is not empty.
  int first_of(uint64_t slots) const noexcept {
    int first = std::countr_zero(slots);
    if (is_single(slots)) [[likely]]
      return first;
    while ((slots &= slots - 1) != 0) {
      if (const int slot = std::countr_zero(slots); is_ahead(slot, first)) first = slot;
    }
    return first;
  }

  // Forgets all runs, in the child of a fork.
  void reset() noexcept { slots_.store(0, std::memory_order_relaxed); }

 private:
  static bool is_single(uint64_t slots) noexcept { return (slots & (slots - 1)) == 0; }
  int64_t due(int slot) const noexcept { return due_[slot].load(std::memory_order_relaxed); }

  // Written where a run begins or ends, read by every tile, so on lines of their own.
  alignas(64) std::atomic<uint64_t> slots_{0};
  std::array<std::atomic<int64_t>, kSlots> due_{};
};

}  // namespace aspen
