// What threads that take up tiles do alike: workers of the process, and lanes of a run of the lab.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>
#include <utility>

#include "parking.h"
#include "spin.h"
#include "traversal.h"

namespace aspen {

// Longer than the gaps between the tiles of a run, shorter than anyone would notice in a profile.
inline constexpr std::chrono::nanoseconds kSearchTime = std::chrono::microseconds(30);

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

// A lane is what Parking asks of who looks for work (parking.h): `take`, `has_work`, `is_over` and the rest.

// Looks for a tile, for so long. Null where the lane is over, too.
template <typename Lane>
Node* search_for(Lane& lane, std::chrono::nanoseconds time) noexcept {
  using Clock = std::chrono::steady_clock;
  Node* node = nullptr;
  for (const auto end = Clock::now() + time; node == nullptr && !lane.is_over() && Clock::now() < end;) {
    for (int i = 0; i < 16 && !lane.has_work(); ++i) pause_core();
    node = lane.take();
  }
  return node;
}

// The head of the next path, for which the lane may have to sleep. Null when it is over.
template <typename Lane>
Node* next_head(Lane&& lane, Parking& parking) noexcept {
  if (lane.is_over()) return nullptr;
  if (Node* const node = lane.take()) return node;
  return parking.seek(lane);
}

}  // namespace aspen
