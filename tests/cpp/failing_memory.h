// Memory that a test refuses, for the whole program whose one source includes this.
#pragma once

#include <atomic>
#include <cstdint>

#include "refusable_memory.h"

namespace aspen::testing {

// Refuses the `first`-th request from now on, counted from 0, and `count` in all. Counts requests while it lives.
class Refusal {
 public:
  static constexpr int64_t kAll = INT64_MAX / 2;

  Refusal(int64_t first, int64_t count) {
    first_.store(first);
    count_.store(count);
    requests_.store(0);
    is_on_.store(true);
  }
  ~Refusal() { end(); }
  void end() { is_on_.store(false); }
  // Whether any request was refused.
  bool happened() const { return requests_.load() > first_.load(); }

  static bool refuses() {
    if (!is_on_.load(std::memory_order_acquire)) return false;
    const int64_t number = requests_.fetch_add(1);
    return number >= first_.load() && number - first_.load() < count_.load();
  }

 private:
  static inline std::atomic<bool> is_on_{false};
  static inline std::atomic<int64_t> requests_{0}, first_{0}, count_{0};
};

inline bool is_refused() { return Refusal::refuses(); }

}  // namespace aspen::testing
