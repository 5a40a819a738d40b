// Locks of the process that the child of a fork finds free.
#pragma once

#include <mutex>

namespace aspen {

// A lock that lives as long as the process. A thread that forks takes all of them first. So nobody else is inside, and what they
// guard is whole; then parent and child let them go. Of a std::mutex the child may get a copy that a thread of its parent holds,
// and nobody there would ever let it go.
//
// What guards state beyond a call is such a lock (tests/engine/test_forks.py). A static variable inside a function has a lock
// too, which the compiler makes: it is made when the library is loaded, or under one of these, or is a MadeOnce.
class ForkSafeMutex {
 public:
  // `in_child`, if any, brings what the lock guards into the state of a process that has none of our threads. The child calls it
  // while it holds all the locks.
  explicit ForkSafeMutex(void (*in_child)() noexcept = nullptr) noexcept;
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  bool try_lock() { return mutex_.try_lock(); }

 private:
  struct Fork;

  std::mutex mutex_;
  void (*const in_child_)() noexcept;
  ForkSafeMutex* earlier_ = nullptr;  // the next one in the list of all
};

}  // namespace aspen
