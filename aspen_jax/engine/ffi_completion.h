// How XLA hears of the end of a run that it does not wait for.
#pragma once

#include <exception>
#include <optional>
#include <type_traits>
#include <variant>

#include "failure.h"
#include "ffi_buffers.h"
#include "xla/ffi/api/ffi.h"

namespace aspen {

// What a handler gives to XLA: an error, or a future. Both are XLA's.
using Started = std::variant<XLA_FFI_Error*, XLA_FFI_Future*>;

// A future of XLA's that is there before the run begins. From then on nothing of ours needs memory: ffi::Future takes some when
// the run is in flight already, and where there is none XLA would go on without the run, whose memory it gives to others.
class Completion {
 public:
  explicit Completion(const XLA_FFI_Api* api) : api_(api) {}

  // Makes the future. Comes first; returns an error where XLA makes none.
  XLA_FFI_Error* open() {
    XLA_FFI_Future_Create_Args args = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
    XLA_FFI_Error* const error = api_->XLA_FFI_Future_Create(&args);
    future_ = args.future;
    return error;
  }

  XLA_FFI_Future* future() const { return future_; }

  // Completes the future, at the end of the run.
  void operator()(const Failure& failure) const noexcept {
    if (failure.empty()) {
      XLA_FFI_Future_SetAvailable_Args args = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr, future_};
      check(api_->XLA_FFI_Future_SetAvailable(&args));
      return;
    }
    const bool is_memory = failure.kind() == Failure::Kind::kOutOfMemory;
    const ffi::Error error = error_of(is_memory ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal, failure.text());
    XLA_FFI_Future_SetError_Args args = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr, future_, for_xla(api_, error)};
    check(api_->XLA_FFI_Future_SetError(&args));
  }

 private:
  // XLA refuses only arguments of another version, which it would have refused when the future was made.
  static void check(const XLA_FFI_Error* error) noexcept {
    if (error != nullptr) std::terminate();
  }

  const XLA_FFI_Api* api_;
  XLA_FFI_Future* future_ = nullptr;
};
static_assert(std::is_trivially_copyable_v<Completion> && sizeof(Completion) <= 2 * sizeof(void*),
              "std::function holds it without taking memory");

}  // namespace aspen

// How handlers ask for XLA's interface, and return what is XLA's already.
template <>
struct xla::ffi::CtxDecoding<const XLA_FFI_Api*> {
  using Type = const XLA_FFI_Api*;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext*, DiagnosticEngine&) { return api; }
};
template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, aspen::Started> {
  static aspen::Started Encode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*, aspen::Started started) { return started; }
};
