// Where a thread waits for the end of a run that it has submitted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "failure.h"

namespace aspen {

// Made before the run begins: its end needs no memory. Shared with whoever ends the run, who may still be inside `set` when the
// thread that waited has gone on.
class Outcome {
 public:
  void set(const Failure& failure) noexcept {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    changed_.notify_one();
  }

  // Whether the run ended within this time.
  bool wait_for(std::chrono::nanoseconds time) noexcept {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return failure_.has_value(); });
  }

  Failure wait() noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
    return *failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
};

}  // namespace aspen
