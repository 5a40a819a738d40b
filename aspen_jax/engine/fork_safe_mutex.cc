#include "fork_safe_mutex.h"

#include <pthread.h>

#include <atomic>

namespace aspen {

// What happens to all locks in a fork. Only the thread that forks is here, with all the locks, between `before` and the others.
struct ForkSafeMutex::Fork {
  static constinit std::atomic<ForkSafeMutex*> latest;  // locks are only added
  static constinit ForkSafeMutex* held;                 // the latest of those that the fork holds

  // As std::lock does it: whoever waits for a lock holds no other. So it does not matter in which order others nest them.
  static void before() {
    // acquire, with the release of who added it.
    ForkSafeMutex* const first = latest.load(std::memory_order_acquire);
    for (ForkSafeMutex* waited_for = nullptr;;) {
      if (waited_for != nullptr) waited_for->lock();
      ForkSafeMutex* taken = first;
      while (taken != nullptr && (taken == waited_for || taken->try_lock())) taken = taken->earlier_;
      if (taken == nullptr) break;
      release(first, taken, waited_for);
      if (waited_for != nullptr) waited_for->unlock();
      waited_for = taken;
    }
    held = first;
  }

  static void in_parent() { release(held, nullptr, nullptr); }

  static void in_child() {
    for (ForkSafeMutex* mutex = held; mutex != nullptr; mutex = mutex->earlier_) {
      if (mutex->in_child_ != nullptr) mutex->in_child_();
    }
    release(held, nullptr, nullptr);
  }

 private:
  static void release(ForkSafeMutex* first, const ForkSafeMutex* end, const ForkSafeMutex* but) {
    for (ForkSafeMutex* mutex = first; mutex != end; mutex = mutex->earlier_) {
      if (mutex != but) mutex->unlock();
    }
  }
};

constinit std::atomic<ForkSafeMutex*> ForkSafeMutex::Fork::latest{nullptr};
constinit ForkSafeMutex* ForkSafeMutex::Fork::held = nullptr;

ForkSafeMutex::ForkSafeMutex(void (*in_child)() noexcept) noexcept : in_child_(in_child) {
  // A forked child inherits the registration.
  static constinit std::atomic_flag is_registered = ATOMIC_FLAG_INIT;
  if (!is_registered.test_and_set(std::memory_order_relaxed)) pthread_atfork(Fork::before, Fork::in_parent, Fork::in_child);
  earlier_ = Fork::latest.load(std::memory_order_relaxed);
  // release, with the acquire in `before`: who finds the lock finds it complete.
  while (!Fork::latest.compare_exchange_weak(earlier_, this, std::memory_order_release, std::memory_order_relaxed)) continue;
}

}  // namespace aspen
