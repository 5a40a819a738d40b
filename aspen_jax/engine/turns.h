// Decisions that threads make one at a time, until one fails.
#pragma once

#include <exception>
#include <mutex>

namespace aspen {

class Turns {
 public:
  // What `decide` answers. After one that threw, no other decides: all who come throw the same. So whichever thread is the first
  // to say why the work ended says the first cause.
  template <typename Decide>
  int take(const Decide& decide) {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    try {
      return decide();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace aspen
