// How a thread rounds while it runs tiles: to nearest, denormal numbers kept, exceptions masked.
#pragma once

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace aspen {

// A new thread inherits the mode of whoever starts it, and XLA's threads flush denormals to zero: the bits of a result would
// depend on who came first. Gives the thread its own mode back at the end.
class FloatMode {
 public:
#ifdef __x86_64__
  // Writing the register waits for the instructions under way, and most callers have the mode already.
  FloatMode() noexcept : before_(_mm_getcsr()) {
    if ((before_ & ~kFlags) != kMode) _mm_setcsr(kMode);
  }
  ~FloatMode() {
    if ((before_ & ~kFlags) != kMode) _mm_setcsr(before_);
  }
#else
  FloatMode() noexcept {}
  ~FloatMode() {}
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#ifdef __x86_64__
 private:
  static constexpr unsigned kMode = 0x1f80;  // all exceptions masked and nothing else: the processor's mode after a reset
  static constexpr unsigned kFlags = 0x3f;   // the exceptions that there have been
  unsigned before_;
#endif
};

}  // namespace aspen
