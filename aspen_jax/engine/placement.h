// Which cores the workers are on, where what the operating system chose leaves them waiting beside a free core.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <vector>

#include "runtime.h"

namespace aspen {

// A kernel shares each core fairly and seldom moves a thread. With a neighbour on one of the cores that allows two states in
// which the run waits although a core is free for it:
// - A worker loses its core in the middle of a tile, and soon the others have nothing to do that does not wait for this tile.
//   The worker queues for a whole time slice all the same: it ran there too recently for the kernel to move it.
// - Two workers take turns on one core while the neighbour has another for itself: as fair to the kernel as any other way.
// So an idle worker changes places with one that waits for its core, and a worker that wakes up on the core of another moves to
// one where no worker is. No thread is bound: after a move it may use all cores that it might use before.
//
// Who comes to a core waits for the slice of whoever is there, mostly 3 to 4 ms, so each move gave a neighbour more than its
// share. A thread with a shorter slice is let in at once; its share of the core is the same. So workers ask for the shortest.
//
// Does nothing where the C library does not say which core a thread is on (glibc does on Linux, from 2.35).
class Placement {
 public:
  // Seats for workers of lower numbers than `most`.
  explicit Placement(int most = kMaxWorkers) : seats_(static_cast<size_t>(most)) {}

  // The worker's own thread calls these, before its first path and after its last.
  void enter(int worker) noexcept;
  void leave(int worker) noexcept;

  // The worker calls these around each path. Relaxed, for it is a hint: a worker seen walking may have stopped, but cannot have
  // left under the lock.
  void begin_walk(int worker) noexcept { seats_[worker].walking.store(true, std::memory_order_relaxed); }
  void end_walk(int worker) noexcept { seats_[worker].walking.store(false, std::memory_order_relaxed); }

  // Moves away from the core of another worker, after a sleep and without a tile in hand.
  void spread(int worker, int workers) noexcept;

  // The processor time of other workers that are in a path.
  class Look {
   public:
    bool empty() const { return size_ == 0; }

   private:
    friend class Placement;
    static constexpr int kMost = 8;  // each costs a system call of some 200 ns
    struct Seen {
      int worker;
      int64_t ran_ns;
    };
    std::array<Seen, kMost> seen_;
    int size_ = 0;
  };
  Look look(int worker, int workers) const noexcept;

  // A worker seen by the look some time ago that is still in a path and has not run since.
  std::optional<int> waiting(const Look& look) const noexcept;

  // Changes places with a worker that waits for its core. A worker without work calls it.
  void make_way(int worker) noexcept;

  // Forgets all workers: the child of a fork has none.
  void reset() noexcept;

 private:
  // Written by its worker at each path, so it has a cache line of its own.
  struct alignas(64) Seat {
    std::atomic<bool> walking{false};
    // Set by `enter`. The kernel keeps the number of the core that the thread is on, or waits for, where `core` points.
    std::atomic<const uint32_t*> core{nullptr};
    std::atomic<int> thread{0};
    std::atomic<clockid_t> clock{0};
  };
  static_assert(sizeof(Seat) == 64);

  class Lock;

  // The core of a worker in a path, otherwise -1. Under the lock, so that the thread is there.
  int core_of(int worker) const noexcept;

  std::vector<Seat> seats_;
  std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
};

// The calling thread. Where the kernel knows no slices (before 6.12) nothing changes.
void ask_for_short_slices() noexcept;

}  // namespace aspen
