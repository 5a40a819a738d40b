// What a context gives and gets back: modules, memory, streams, events, graphs, handles of libraries.
#pragma once

#include <type_traits>
#include <utility>

#include "driver.h"

namespace aspen::cuda {

// The context that owned things belong to. It outlives them.
class HomeContext {
 public:
  HomeContext(const Driver& driver, Context context) : driver_(driver), context_(context) {}
  ~HomeContext() {
    Context popped = nullptr;
    if (is_closed_ && !is_gone_) driver_.cuCtxPopCurrent(&popped);
  }
  HomeContext(const HomeContext&) = delete;
  HomeContext& operator=(const HomeContext&) = delete;

  // Waits for the device. From now on the context is current, until this ends: so owned things can be given back.
  void close() noexcept {
    is_closed_ = true;
    is_gone_ = driver_.cuCtxPushCurrent(context_) != kSuccess;
    if (!is_gone_) driver_.cuCtxSynchronize();
  }
  // Says that all that was in it is gone too: nothing is given back.
  bool is_gone() const { return is_gone_; }
  const Driver& driver() const { return driver_; }
  Context context() const { return context_; }

 private:
  const Driver& driver_;
  const Context context_;
  bool is_closed_ = false, is_gone_ = false;
};

// One such thing, or none. The function of the driver or of a library gives it back, unless its context is gone.
template <auto kGiveBack>
class Owned;

template <class Library, class T, int (*Library::*kGiveBack)(T)>
class Owned<kGiveBack> {
 public:
  explicit Owned(const HomeContext& home, T value = {}) : home_(home), value_(value) {}
  ~Owned() {
    if (value_ != T{} && !home_.is_gone()) (Library::get().*kGiveBack)(value_);
  }
  Owned(Owned&& other) noexcept : home_(other.home_), value_(std::exchange(other.value_, T{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  T get() const { return value_; }
  // Takes what the call gives, whose status this returns. A call that fails gives nothing.
  template <class... Parameters>
  int take(int (*call)(T*, Parameters...), std::type_identity_t<Parameters>... parameters) {
    T given{};
    const int status = call(&given, parameters...);
    if (status == 0) value_ = given;
    return status;
  }

 private:
  const HomeContext& home_;
  T value_;
};

}  // namespace aspen::cuda
