// A value of the process that is made when it is first asked for.
#pragma once

#include <atomic>
#include <memory>

namespace aspen {

// Has no lock, unlike a static variable inside a function: the child of a fork would wait for ever for the thread that was making
// it. So several threads may make it at once, and all get the one that was ready first. It is never destroyed.
template <typename T>
class MadeOnce {
 public:
  // What `make` throws passes through, and the next call tries again.
  template <typename Make>
  const T& get(const Make& make) {
    // acquire, with the release below: the value is complete.
    if (const T* const made = value_.load(std::memory_order_acquire)) return *made;
    std::unique_ptr<const T> mine = std::make_unique<T>(make());
    const T* others = nullptr;
    if (!value_.compare_exchange_strong(others, mine.get(), std::memory_order_release, std::memory_order_acquire)) return *others;
    return *mine.release();
  }

 private:
  std::atomic<const T*> value_{nullptr};
};

}  // namespace aspen
