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

// The error of an exception in flight: none may cross the border.
inline ffi::Error current_error() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "aspen_run: out of memory; use a smaller batch or a smaller model");
  } catch (const GraphError& error) {
    return ffi::Error::InvalidArgument(std::string("aspen_run cannot load its graph: ") + error.what());
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(std::string("aspen_run: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("aspen_run: ") + error.what());
  }
}

// XLA asks each handler for its state's type when the target is registered, and refuses a type that it does not know. Python
// cannot register the type in time: what is registered before JAX has a backend waits, and targets go before types. So the
// first question registers it. Each platform's XLA numbers types by itself, so a state type is for one platform.
template <class State>
XLA_FFI_Error* register_type(const XLA_FFI_Api* api, const char* name) {
  static constinit std::mutex mutex;
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<State>();
  const std::lock_guard lock(mutex);
  if (State::id.type_id != 0) return nullptr;
  return ffi::Ffi::RegisterTypeId(api, name, &State::id, &info);
}

}  // namespace aspen
