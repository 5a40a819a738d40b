// Telling the core that the thread is only waiting.
#pragma once

#include <thread>

namespace aspen {

inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waiting for something that takes nanoseconds unless the thread we wait for has lost its core.
class Backoff {
 public:
  void wait() noexcept {
    if (++rounds_ < kRounds) {
      pause_core();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kRounds = 64;
  int rounds_ = 0;
};

}  // namespace aspen
