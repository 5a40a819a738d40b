// How a thread computes with floating-point numbers.
#pragma once

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace aspen {

// Gives the thread its own mode back at the end.
class FloatMode {
 public:
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#ifdef __x86_64__
  ~FloatMode() {
    if ((before_ & ~kFlags) != mode_) _mm_setcsr(before_);
  }

 protected:
  // Writing the register waits for the instructions under way, and most callers have the mode already.
  explicit FloatMode(unsigned mode) noexcept : before_(_mm_getcsr()), mode_(mode) {
    if ((before_ & ~kFlags) != mode_) _mm_setcsr(mode_);
  }
  static constexpr unsigned kPlain = 0x1f80;  // all exceptions masked and nothing else: the processor's mode after a reset
  static constexpr unsigned kFlushesDenormals = 0x8040;  // of results and of operands

 private:
  static constexpr unsigned kFlags = 0x3f;  // the exceptions that there have been
  unsigned before_, mode_;
#else
  ~FloatMode() {}

 protected:
  explicit FloatMode(unsigned) noexcept {}
  static constexpr unsigned kPlain = 0, kFlushesDenormals = 0;
#endif
};

// Rounds to nearest, keeps denormal numbers and masks exceptions. A new thread inherits the mode of whoever starts it, and XLA's
// threads flush denormals to zero: the bits of a result would depend on who came first.
struct TileFloatMode : FloatMode {
  TileFloatMode() noexcept : FloatMode(kPlain) {}
};

// Rounds as XLA's own threads do. XLA's program goes on in our thread after our call.
struct XlaFloatMode : FloatMode {
  XlaFloatMode() noexcept : FloatMode(kPlain | kFlushesDenormals) {}
};

}  // namespace aspen
