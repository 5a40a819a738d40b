// Who works at each place, a row of the Ready Pool, and who stands in while a thread is away.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "runtime.h"

namespace aspen {

// A worker that has ended a run calls the run's `done`, which is somebody else's code. XLA goes on from there with the rest of
// its program, which may wait: in a collective for other devices, or in a callback that calls us again. What it waits for may be
// a run that needs this very worker. So the worker is *away* while it is in `done`. Where runs are in the pool and a worker stays
// away, a thread without a place stands in: it takes the place. Who comes back and finds the place taken becomes a spare thread
// itself.
//
// Most workers are back within microseconds, and waking a thread for nothing would cost more. So the stand-in first waits for
// kAbsence. There is one stand-in at a time; after it has taken a place it calls the next.
//
// Plain data: the caller holds the runtime's lock for all but what is said to be atomic.
class Places {
 public:
  static constexpr int kNone = -1;
  // Longer than XLA takes to return from a `done` that waits for nothing, shorter than anyone would notice in a profile.
  static constexpr std::chrono::nanoseconds kAbsence{100'000};

  // Which thread of those who had the place, one after the other.
  using Holder = uint64_t;

  bool is_taken(int place) const noexcept { return places_[place].taken; }
  int num_taken() const noexcept { return num_taken_.load(std::memory_order_relaxed); }  // atomic

  void take(int place) noexcept {
    places_[place].taken = true;
    num_taken_.fetch_add(1, std::memory_order_relaxed);
  }
  void give_up(int place) noexcept {
    places_[place].taken = false;
    num_taken_.fetch_sub(1, std::memory_order_relaxed);
  }

  // A thread calls these two around `done`. False: the place is another thread's now.
  Holder go_away(int place, int64_t now) noexcept {
    places_[place].away_since = now;
    num_away_.fetch_add(1, std::memory_order_relaxed);
    return places_[place].holder;
  }
  bool has(int place, Holder holder) const noexcept { return places_[place].holder == holder; }
  bool come_back(int place, Holder holder) noexcept {
    if (!has(place, holder)) return false;
    fill(places_[place]);
    return true;
  }

  bool someone_stays_away(int64_t now) const noexcept {
    return some_away() && std::ranges::any_of(places_, [&](const Place& place) { return place.taken && place.stays_away(now); });
  }
  bool some_away() const noexcept { return num_away_.load(std::memory_order_relaxed) > 0; }  // atomic
  bool all_away() const noexcept { return num_away_.load(std::memory_order_relaxed) == num_taken(); }

  // A place below `end` whose thread has been away for kAbsence. The caller's from now on.
  std::optional<int> stand_in(int end, int64_t now) noexcept {
    for (int place = 0; place < end; ++place) {
      Place& empty = places_[place];
      if (!empty.stays_away(now)) continue;
      ++empty.holder;
      fill(empty);
      return place;
    }
    return std::nullopt;
  }

  // Empties all places: the child of a fork has no workers. Its one thread may be away from a place: that is lost.
  void reset() noexcept {
    for (Place& place : places_) place = {.holder = place.holder + 1};
    num_taken_.store(0, std::memory_order_relaxed);
    num_away_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kAtWork = -1;

  struct Place {
    Holder holder = 0;
    int64_t away_since = kAtWork;
    bool taken = false;

    bool stays_away(int64_t now) const noexcept { return away_since != kAtWork && now - away_since >= kAbsence.count(); }
  };

  void fill(Place& place) noexcept {
    place.away_since = kAtWork;
    num_away_.fetch_sub(1, std::memory_order_relaxed);
  }

  std::array<Place, kMaxWorkers> places_;
  std::atomic<int> num_taken_{0};
  std::atomic<int> num_away_{0};
};

}  // namespace aspen
