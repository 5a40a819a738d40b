// Idle workers who compute shares of one tile.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "arena.h"
#include "parking.h"
#include "spin.h"

namespace aspen {

// A tile that takes long, such as a loop of many turns, opens the team, hands it one task after the other and closes it. A worker
// that finds nothing else to do takes a seat, computes the share of its seat in each task, and leaves when other work comes. The
// tile's own worker leads: it computes share 0, and the share of each seat that nobody has claimed by then. So nobody waits for a
// worker that is not there, and the share of a seat is in the same cache from task to task.
//
// There is one team. While one tile leads it, others work alone: where two tiles run, fewer workers are idle.
//
// A seat's state is 2 n - 1 when its share of task n is claimed, and 2 n when that is computed. It only grows. Memory order:
//   leader: (1) write the task   (2) publish n, release   (3) claim what is left   (4) read each state as 2 n, acquire
//   member: (a) read n, acquire  (b) claim the share      (c) read the task, compute    (d) state = 2 n, release
// (2) and (a) are a pair: the member sees the task, and all that the leader wrote before it. (d) and (4) are a pair: the leader
// sees what the member computed, and writes the next task only after the member has read this one. A claim is a compare-exchange
// of the state, so one of the two computes the share. Who has read an old n does not claim: the state has grown past it, since
// the leader ends no task before each share is computed.
//
// Seats and the number of times that the team was opened are one word, so that who took a seat gives it back to the same tile or
// not at all. Who is late, and claims a share of the next tile's task, computes it as rightly as anybody.
class Team {
 public:
  // Computes a share of a task, all of whose shares are computed once. Null, or what went wrong.
  using Share = const char* (*)(void* context, int share, int num_shares, std::byte* scratch) noexcept;

  static constexpr int kMost = 16;  // workers, with the leader

  explicit Team(Parking& parking) noexcept : parking_(parking) {}

  // Whether a worker that has nothing else to do is wanted. seq_cst, with `open`: it counts as work (parking.h).
  bool has_seat() const noexcept { return free_of(seats_.load(std::memory_order_seq_cst)) != 0; }

  // Asks idle workers to come, each with so many bytes of scratch. False where another tile leads.
  bool open(int most, size_t scratch_bytes) noexcept {
    // acquire, with the release in `close`: what the last leader wrote.
    if (is_led_.exchange(true, std::memory_order_acquire)) return false;
    most_ = std::clamp(most, 1, kMost);
    scratch_bytes_.store(scratch_bytes, std::memory_order_relaxed);  // whoever claims a share has acquired a task since
    change_seats(all_free());
    parking_.wake(most_ - 1);
    return true;
  }

  void close() noexcept {
    change_seats(0);
    is_led_.store(false, std::memory_order_release);
  }

  // How many shares a task had better have: one for each seat up to the last that is taken. Its leader asks.
  int size() const noexcept {
    const uint64_t taken = all_free() & ~free_of(seats_.load(std::memory_order_relaxed));
    return std::max(1, static_cast<int>(std::bit_width(taken)));
  }

  // Returns when all shares are computed; the first error that it finds. Its leader calls it, with scratch of its own.
  const char* run(Share share, void* context, int num_shares, std::byte* scratch) noexcept {
    share_ = share;  // (1)
    context_ = context;
    const uint64_t number = (task_.load(std::memory_order_relaxed) >> kShareBits) + 1;
    task_.store(number << kShareBits | static_cast<uint64_t>(num_shares), std::memory_order_release);  // (2)
    const char* error = share(context, 0, num_shares, scratch);
    for (int i = 1; i < num_shares; ++i) {
      if (!seats_of_[static_cast<size_t>(i)].claims(number)) continue;  // (3)
      const char* const own = share(context, i, num_shares, scratch);
      if (error == nullptr) error = own;
      seats_of_[static_cast<size_t>(i)].ends(number, nullptr);
    }
    for (int i = 1; i < num_shares; ++i) {
      const Seat& seat = seats_of_[static_cast<size_t>(i)];
      for (Backoff backoff; seat.state.load(std::memory_order_acquire) != 2 * number;) backoff.wait();  // (4)
      if (error == nullptr) error = seat.error;
    }
    return error;
  }

  // Takes a seat, if there is one, until the tile is done or `may_stay()` is false; `scratch` is the worker's.
  template <typename MayStay>
  void join(Arena& scratch, const MayStay& may_stay) noexcept {
    uint64_t seats = seats_.load(std::memory_order_relaxed);
    int number = 0;
    do {
      if (free_of(seats) == 0) return;
      number = std::countr_zero(free_of(seats));
    } while (!seats_.compare_exchange_weak(seats, seats & ~(uint64_t{1} << number), std::memory_order_relaxed));
    const uint64_t opened = seats >> kMost;
    Seat& seat = seats_of_[static_cast<size_t>(number)];
    Backoff backoff;
    int rounds = 0;  // since the last share
    while ((seats_.load(std::memory_order_relaxed) >> kMost) == opened && may_stay()) {
      const uint64_t task = task_.load(std::memory_order_acquire);  // (a)
      const auto num_shares = static_cast<int>(task & ((1 << kShareBits) - 1));
      if (number >= num_shares || !seat.claims(task >> kShareBits)) {  // (b)
        if (++rounds > kPatience) {
          std::this_thread::sleep_for(kNap);
        } else {
          backoff.wait();
        }
        continue;
      }
      rounds = 0;
      backoff = {};
      const size_t bytes = scratch_bytes_.load(std::memory_order_relaxed);
      const bool has_scratch = bytes <= scratch.size() || scratch.grow(bytes);
      const char* const error = has_scratch ? share_(context_, number, num_shares, scratch.data()) : kNoScratch;  // (c)
      seat.ends(task >> kShareBits, error);                                                                       // (d)
    }
    // Relaxed, as when it was taken: a seat guards nothing.
    for (seats = seats_.load(std::memory_order_relaxed); seats >> kMost == opened;) {
      if (seats_.compare_exchange_weak(seats, seats | uint64_t{1} << number, std::memory_order_relaxed)) return;
    }
  }

  // Forgets everybody, in the child of a fork.
  void reset() noexcept {
    change_seats(0);
    is_led_.store(false, std::memory_order_relaxed);
  }

 private:
  static constexpr int kShareBits = 8;
  // Rounds of waiting for a task, a tenth of a millisecond together. Then the tile does for long what nobody shares: a worker
  // naps between looks, each no longer than a thread takes to wake up.
  static constexpr int kPatience = 256;
  static constexpr std::chrono::microseconds kNap{50};
  static constexpr char kNoScratch[] = "out of memory: a worker that helps needs more scratch; free some memory";

  struct alignas(64) Seat {
    std::atomic<uint64_t> state{0};
    const char* error = nullptr;

    bool claims(uint64_t task) noexcept {
      uint64_t now = state.load(std::memory_order_relaxed);
      return now < 2 * task - 1 && state.compare_exchange_strong(now, 2 * task - 1, std::memory_order_relaxed);
    }
    void ends(uint64_t task, const char* message) noexcept {
      error = message;
      state.store(2 * task, std::memory_order_release);
    }
  };

  static uint64_t free_of(uint64_t seats) noexcept { return seats & ((uint64_t{1} << kMost) - 1); }
  uint64_t all_free() const noexcept { return ((uint64_t{1} << most_) - 1) & ~uint64_t{1}; }

  // Those who sit on seats of before lose them.
  void change_seats(uint64_t free) noexcept {
    uint64_t seats = seats_.load(std::memory_order_relaxed);
    while (!seats_.compare_exchange_weak(seats, ((seats >> kMost) + 1) << kMost | free, std::memory_order_seq_cst)) {
    }
  }

  Parking& parking_;
  std::atomic<bool> is_led_{false};
  int most_ = 1;  // of the leader
  // How often it was opened or closed, and the seats that are free. Every idle worker reads it; it hardly changes.
  alignas(64) std::atomic<uint64_t> seats_{0};
  // The number of the task, and how many shares it has. Then the task.
  alignas(64) std::atomic<uint64_t> task_{0};
  Share share_ = nullptr;
  void* context_ = nullptr;
  std::atomic<size_t> scratch_bytes_{0};
  std::array<Seat, kMost> seats_of_;
};

}  // namespace aspen
