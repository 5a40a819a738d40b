// What threads that take up tiles do alike: workers of the process, and lanes of a run of the lab.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "parking.h"
#include "placement.h"
#include "spin.h"
#include "traversal.h"

namespace aspen {

// A thread that takes no signals: these are for the threads of the application, whose handlers know nothing of ours. Throws
// std::system_error.
template <typename Work>
std::thread masked_thread(Work work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restored {
    const sigset_t& mask;
    ~Restored() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  };
  const Restored restored{before};
  return std::thread(std::move(work));
}

// One who looks for work for a lane, and sleeps where there is none (parking.h). `Lane` derives from it and says `take`,
// `has_work` and `is_over`, and `num_lanes`, which share the placement.
template <typename Lane>
class Seeker {
 public:
  // The head of the next path. Null when the lane is over.
  Node* next(Parking& parking) noexcept {
    if (lane().is_over()) return nullptr;
    if (Node* const node = lane().take()) return node;
    return parking.seek(lane());
  }

  // Goes on for as long as others walk, until one of these is seen to wait for its core.
  Node* look() noexcept {
    Node* node = search(kSearchTime);
    waiting_.reset();
    for (const auto end = Clock::now() + kWatchTime; node == nullptr && !waiting_ && !lane().is_over() && Clock::now() < end;) {
      const Placement::Look seen = placement_.look(number_, lane().num_lanes());
      if (seen.empty()) break;
      node = search(kLookTime);
      if (node == nullptr) waiting_ = placement_.waiting(seen);
    }
    return node;
  }
  void before_sleep() const noexcept {
    if (waiting_) placement_.make_way(*waiting_);
  }
  void after_sleep() const noexcept { placement_.spread(number_, lane().num_lanes()); }

 protected:
  Seeker(Placement& placement, int number) noexcept : placement_(placement), number_(number) {}
  ~Seeker() = default;

  int number() const noexcept { return number_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Longer than the gaps between the tiles of a run, shorter than anyone would notice in a profile.
  static constexpr std::chrono::microseconds kSearchTime{30};
  // Much longer than it takes to read a clock; a thread that has not run for so long waits for its core.
  static constexpr std::chrono::microseconds kLookTime{15};
  // The time to search while others walk. Longer than most tiles: nobody who sleeps sees that a walker has lost its core.
  static constexpr std::chrono::microseconds kWatchTime{300};

  Lane& lane() noexcept { return static_cast<Lane&>(*this); }
  const Lane& lane() const noexcept { return static_cast<const Lane&>(*this); }

  Node* search(std::chrono::nanoseconds time) noexcept {
    Node* node = nullptr;
    for (const auto end = Clock::now() + time; node == nullptr && !lane().is_over() && Clock::now() < end;) {
      for (int i = 0; i < 16 && !lane().has_work(); ++i) pause_core();
      node = lane().take();
    }
    return node;
  }

  Placement& placement_;
  const int number_;
  std::optional<int> waiting_;  // a lane that waits for its core
};

}  // namespace aspen
