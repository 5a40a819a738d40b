// What the custom calls of all platforms share: buffers of XLA beside what a graph wants, and exceptions as errors of XLA.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"
#include "fork_safe_mutex.h"
#include "graph.h"
#include "signature.h"
#include "xla/ffi/api/ffi.h"

namespace aspen {

namespace ffi = xla::ffi;

constexpr std::optional<DType> dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::PRED:
      return DType::kBool;
    case ffi::S8:
      return DType::kI8;
    case ffi::S16:
      return DType::kI16;
    case ffi::S32:
      return DType::kI32;
    case ffi::S64:
      return DType::kI64;
    case ffi::U8:
      return DType::kU8;
    case ffi::U16:
      return DType::kU16;
    case ffi::U32:
      return DType::kU32;
    case ffi::U64:
      return DType::kU64;
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F32:
      return DType::kF32;
    case ffi::F64:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

// Appends the buffer's address, or returns what is wrong with it.
template <typename Pointer>
std::optional<std::string> take(std::vector<Pointer>& buffers, std::string_view role, const ffi::AnyBuffer& buffer,
                                const TensorView& wanted) {
  const auto dims = buffer.dimensions();
  const std::span<const int64_t> shape(dims.begin(), dims.size());
  const std::optional<DType> dtype = dtype_of(buffer.element_type());
  if (!matches(wanted, dtype, shape)) {
    const std::string name =
        dtype ? std::string(name_of(*dtype)) : "XLA element type " + std::to_string(static_cast<int>(buffer.element_type()));
    return mismatch(role, buffers.size(), describe(name, shape), wanted);
  }
  buffers.push_back(buffer.untyped_data());
  return std::nullopt;
}

// How many results a call has beside an empty last one, which stands for nothing. It keeps XLA from taking the call itself for
// the tuple of a loop's carries, whose operands it then compares with them: the loop would never end (aspen_jax/runtime.py).
inline size_t count_results(ffi::RemainingRets& rets, size_t expected) {
  if (rets.size() != expected + 1) return rets.size();
  auto last = rets.get<ffi::AnyBuffer>(expected);
  return last.has_value() && last.value()->size_bytes() == 0 ? expected : rets.size();
}

// "aspen_run: " and a sentence. Short where there is no memory for more, so that it takes none.
inline ffi::Error error_of(ffi::ErrorCode code, std::string_view text, std::string_view who = "aspen_run: ") noexcept {
  try {
    return {code, std::string(who).append(text)};
  } catch (const std::bad_alloc&) {
    return {ffi::ErrorCode::kResourceExhausted, "out of memory"};
  }
}

// The error of an exception in flight: none may cross the border.
inline ffi::Error current_error() noexcept {
  try {
    throw;
  } catch (const GraphError& error) {
    return error_of(ffi::ErrorCode::kInvalidArgument, error.what(), "aspen_run cannot load its graph: ");
  } catch (const std::invalid_argument& error) {
    return error_of(ffi::ErrorCode::kInvalidArgument, error.what());
  } catch (...) {
    const Failure failure = Failure::of_exception();
    const bool is_memory = failure.kind() == Failure::Kind::kOutOfMemory;
    return error_of(is_memory ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal, failure.text());
  }
}

inline XLA_FFI_Error* for_xla(const XLA_FFI_Api* api, const ffi::Error& error) noexcept {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, error.message().c_str(),
                                    static_cast<XLA_FFI_Error_Code>(*error.errc())};
  return api->XLA_FFI_Error_Create(&args);
}

// A handler as XLA may call it. XLA's header makes arguments and results around ours, which takes memory.
template <XLA_FFI_Handler* handler>
XLA_FFI_Error* guarded(XLA_FFI_CallFrame* frame) noexcept {
  try {
    return handler(frame);
  } catch (...) {
    return for_xla(frame->api, current_error());
  }
}

inline ForkSafeMutex type_mutex;

// XLA asks each handler for its state's type when the target is registered, and refuses a type that it does not know. Python
// cannot register the type in time: what is registered before JAX has a backend waits, and targets go before types. So the
// first question registers it. Each platform's XLA numbers types by itself, so a state type is for one platform.
template <class State>
XLA_FFI_Error* register_type(const XLA_FFI_Api* api, const char* name) {
  const std::lock_guard lock(type_mutex);
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<State>();
  if (State::id.type_id != 0) return nullptr;
  return ffi::Ffi::RegisterTypeId(api, name, &State::id, &info);
}

}  // namespace aspen
