#include "ffi.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "plan.h"
#include "plan_cache.h"
#include "runtime.h"
#include "signature.h"
#include "xla/ffi/api/ffi.h"

namespace aspen {
namespace {

namespace ffi = xla::ffi;

using GraphBytes = ffi::Span<const uint8_t>;

// What XLA keeps for a compiled call.
struct CallState {
  static ffi::TypeId id;
  std::shared_ptr<const Plan> plan;
  // For each operand the address in the last call, as a number, odd where its memory was moved to huge pages. Nothing is ordered
  // by these: at worst it is moved twice, and the second time there is nothing to do.
  std::unique_ptr<std::atomic<uintptr_t>[]> addresses;

  explicit CallState(std::shared_ptr<const Plan> its_plan)
      : plan(std::move(its_plan)), addresses(std::make_unique<std::atomic<uintptr_t>[]>(plan->num_operands())) {}

  // A large operand that is where it was in the call before is taken for weights, which are read in every call.
  void settle(size_t operand, const void* data, size_t bytes) noexcept {
    if (bytes < kSettled) return;
    const auto address = reinterpret_cast<uintptr_t>(data);
    const uintptr_t before = addresses[operand].load(std::memory_order_relaxed);
    if (before == (address | 1)) return;
    addresses[operand].store(before == address ? address | 1 : address, std::memory_order_relaxed);
    if (before == address) move_to_huge_pages(data, bytes);
  }
  static constexpr size_t kSettled = size_t{4} << 20;
};
ffi::TypeId CallState::id = {};

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

constexpr size_t kMappedAnew = size_t{32} << 20;

struct Buffers {
  std::vector<const void*> operands;
  std::vector<void*> results;

  // Nothing, or why these arguments are not those of the plan.
  std::optional<std::string> take_all(CallState& state, const ffi::RemainingArgs& args, ffi::RemainingRets& rets) {
    const Plan& plan = *state.plan;
    if (args.size() != plan.num_operands()) return count_mismatch("operand", args.size(), plan.num_operands());
    if (rets.size() != plan.num_results()) return count_mismatch("result", rets.size(), plan.num_results());
    operands.reserve(args.size());
    results.reserve(rets.size());
    for (size_t i = 0; i < args.size(); ++i) {
      const auto buffer = args.get<ffi::AnyBuffer>(i);
      if (buffer.has_error()) return buffer.error().message();
      if (auto wrong = take(operands, "operand", buffer.value(), plan.operand(i).dense)) return wrong;
      state.settle(i, operands.back(), buffer.value().size_bytes());
    }
    for (size_t i = 0; i < rets.size(); ++i) {
      auto buffer = rets.get<ffi::AnyBuffer>(i);
      if (buffer.has_error()) return buffer.error().message();
      if (auto wrong = take(results, "result", *buffer.value(), plan.result(i).dense)) return wrong;
      // The allocator has such memory mapped anew for each call: half a microsecond a small page.
      if (buffer.value()->size_bytes() >= kMappedAnew) prefer_huge_pages(results.back(), buffer.value()->size_bytes());
    }
    return std::nullopt;
  }
};

ffi::Error out_of_memory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "aspen_run: out of memory; use a smaller batch or a smaller model");
}

// The error of an exception in flight: none may cross the border.
ffi::Error current_error() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const GraphError& error) {
    return ffi::Error::InvalidArgument(std::string("aspen_run cannot load its graph: ") + error.what());
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(std::string("aspen_run: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("aspen_run: ") + error.what());
  }
}

ffi::ErrorOr<std::unique_ptr<CallState>> instantiate(GraphBytes graph) {
  try {
    return std::make_unique<CallState>(plan_of(std::as_bytes(std::span(graph.begin(), graph.size()))));
  } catch (...) {
    return ffi::Unexpected(current_error());
  }
}

ffi::Future failed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

ffi::Future execute(CallState* state, ffi::RemainingArgs args, ffi::RemainingRets rets, GraphBytes) {
  try {
    Buffers buffers;
    if (auto wrong = buffers.take_all(*state, args, rets)) {
      return failed(ffi::Error::InvalidArgument("aspen_run: " + *wrong));
    }
    ffi::Promise promise;
    ffi::Future future(promise);
    runtime().submit(state->plan, buffers.operands, buffers.results, [promise](const std::string& error) mutable {
      if (error.empty()) return promise.SetAvailable();
      promise.SetError(ffi::Error::Internal("aspen_run: " + error));
    });
    return future;
  } catch (...) {
    return failed(current_error());
  }
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate, ffi::Ffi::BindInstantiate().Attr<GraphBytes>("graph"));
XLA_FFI_DEFINE_HANDLER(
    kExecute, execute,
    ffi::Ffi::BindExecute().Ctx<ffi::State<CallState>>().RemainingArgs().RemainingRets().Attr<GraphBytes>("graph"));

// XLA asks each handler for its state's type when the target is registered, and refuses a type that it does not know. Python
// cannot register the type in time: what is registered before JAX has a backend waits, and targets go before types. So the
// first question registers it.
XLA_FFI_Error* register_type(const XLA_FFI_Api* api) {
  static constinit std::mutex mutex;
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<CallState>();
  const std::lock_guard lock(mutex);
  if (CallState::id.type_id != 0) return nullptr;
  return ffi::Ffi::RegisterTypeId(api, "aspen_run_state", &CallState::id, &info);
}

XLA_FFI_Error* instantiate_handler(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    if (XLA_FFI_Error* error = register_type(frame->api)) return error;
  }
  return kInstantiate(frame);
}

}  // namespace

FfiHandlers ffi_handlers() { return {reinterpret_cast<void*>(&instantiate_handler), reinterpret_cast<void*>(kExecute)}; }

}  // namespace aspen
