// What runs of graphs from elsewhere may take, and when a run ends before its last tile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "plan.h"

namespace aspen {

struct Limits {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t workspace = kNone;    // bytes of a run beside its operands and results, and of a worker's scratch
  int64_t nanoseconds = kNone;  // from a run's begin
};

// The limits of the process. Each number is read and written as a whole; runs in flight keep what they began with.
Limits limits() noexcept;
// Throws std::invalid_argument where a number is below 0.
void set_limits(const Limits& limits);

// Watches one run, which asks between tiles whether to go on. Whoever waits for the run looks whether it was interrupted.
class Watch {
 public:
  // `interrupted` may be null. Only the thread that waits for the run calls it.
  Watch(int64_t most_ns, std::function<bool()> interrupted);

  // Whether the run has to end. Any thread may ask.
  bool is_over() const noexcept;
  // Why the run has to end; asked only where it is over.
  std::string why() const;

  // Whether the last look was long ago, and the look; both are for the thread that waits.
  bool wants_look() const noexcept;
  void look() noexcept;

  // Nanoseconds between two looks.
  static constexpr int64_t kLookNs = 20'000'000;

 private:
  const int64_t most_ns_;
  const int64_t end_ns_;  // kNone: never
  const std::function<bool()> interrupted_;
  int64_t next_look_ns_;
  std::atomic<bool> was_interrupted_{false};
};

// The watch of a run that begins now, under the limits of the process; null where it has nothing to ask for. A run of the lab
// may have its buffers in several memories, of which the first has the caller's results. Throws std::runtime_error where the run
// needs more memory than runs may take.
std::shared_ptr<Watch> watch_by_limits(const Plan& plan, std::function<bool()> interrupted = nullptr, int num_memories = 1);

}  // namespace aspen
