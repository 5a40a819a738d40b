#include "ffi.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "ffi_buffers.h"
#include "ffi_completion.h"
#include "float_mode.h"
#include "limits.h"
#include "plan.h"
#include "plan_cache.h"
#include "runtime.h"
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
  // Whether XLA's thread waits for the run. Shared with `done`, during which XLA may drop the executable and this with it.
  std::shared_ptr<std::atomic<bool>> waits = std::make_shared<std::atomic<bool>>(false);

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

constexpr size_t kMappedAnew = size_t{32} << 20;

struct Buffers {
  std::vector<const void*> operands;
  std::vector<void*> results;

  // Nothing, or why these arguments are not those of the plan.
  std::optional<std::string> take_all(CallState& state, const ffi::RemainingArgs& args, ffi::RemainingRets& rets) {
    const Plan& plan = *state.plan;
    if (args.size() != plan.num_operands()) return count_mismatch("operand", args.size(), plan.num_operands());
    const size_t num_results = count_results(rets, plan.num_results());
    if (num_results != plan.num_results()) return count_mismatch("result", num_results, plan.num_results());
    operands.reserve(args.size());
    results.reserve(rets.size());
    for (size_t i = 0; i < args.size(); ++i) {
      const auto buffer = args.get<ffi::AnyBuffer>(i);
      if (buffer.has_error()) return buffer.error().message();
      if (auto wrong = take(operands, "operand", buffer.value(), plan.operand(i).dense)) return wrong;
      state.settle(i, operands.back(), buffer.value().size_bytes());
    }
    for (size_t i = 0; i < num_results; ++i) {
      auto buffer = rets.get<ffi::AnyBuffer>(i);
      if (buffer.has_error()) return buffer.error().message();
      if (auto wrong = take(results, "result", *buffer.value(), plan.result(i).dense)) return wrong;
      // The allocator has such memory mapped anew for each call, half a microsecond a small page, unless it is an operand's.
      const bool is_new = std::ranges::find(operands, results.back()) == operands.end();
      if (is_new && buffer.value()->size_bytes() >= kMappedAnew) {
        prefer_huge_pages(results.back(), buffer.value()->size_bytes());
      }
    }
    return std::nullopt;
  }
};

ffi::ErrorOr<std::unique_ptr<CallState>> instantiate(GraphBytes graph) {
  try {
    return std::make_unique<CallState>(plan_of(std::as_bytes(std::span(graph.begin(), graph.size()))));
  } catch (...) {
    return ffi::Unexpected(current_error());
  }
}

// Returns at once. What is left of XLA's program then runs on the worker that ends the run. If another thread had to stand in for
// that worker, because of a collective or much work, the next calls wait: XLA's program goes on in XLA's own thread, as it would
// without us.
void start(const CallState& state, const Buffers& buffers, const Completion& completion) {
  runtime().submit(state.plan, buffers.operands, buffers.results, [completion, waits = state.waits](const Failure& failure) {
    const XlaFloatMode mode;
    completion(failure);
    if (runtime().is_replaced()) waits->store(true, std::memory_order_relaxed);
  });
}

IsInterrupted is_interrupted = nullptr;

// Whether nobody else would hear of Ctrl-C during a run that may take long. XLA runs programs of so little work as it counts in
// ours on the thread that calls, and waits for them there.
bool must_look(const Plan& plan) noexcept {
  const bool is_long = plan.may_not_end() || (!plan.kept().empty() && plan.total_cost() > Watch::kLookNs);
  return is_long && is_interrupted != nullptr && syscall(SYS_gettid) == getpid();
}

// Returns at the end of the run. Nobody waits for the future yet, so the worker goes on at once.
void run(const CallState& state, const Buffers& buffers, const Completion& completion) {
  const auto watch = must_look(*state.plan) ? std::make_shared<Watch>(Limits::kNone, is_interrupted) : nullptr;
  struct {
    const Completion& completion;
    std::mutex mutex = {};
    std::condition_variable changed = {};
    bool ended = false;
  } run{completion};
  const Done done = [&run](const Failure& failure) {
    run.completion(failure);
    const std::lock_guard lock(run.mutex);  // held while notifying: `run` is gone once the waiting thread has it
    run.ended = true;
    run.changed.notify_one();
  };
  runtime().submit(state.plan, buffers.operands, buffers.results, done, nullptr, std::nullopt, nullptr, watch);
  const auto has_ended = [&] { return run.ended; };
  std::unique_lock lock(run.mutex);
  while (watch != nullptr && !run.changed.wait_for(lock, std::chrono::nanoseconds(Watch::kLookNs), has_ended)) {
    lock.unlock();  // the worker may end the run meanwhile
    watch->look();
    lock.lock();
  }
  run.changed.wait(lock, has_ended);
}

Started execute(const XLA_FFI_Api* api, CallState* state, ffi::RemainingArgs args, ffi::RemainingRets rets, GraphBytes) {
  try {
    Buffers buffers;
    if (const auto wrong = buffers.take_all(*state, args, rets)) {
      return for_xla(api, error_of(ffi::ErrorCode::kInvalidArgument, *wrong));
    }
    Completion completion(api);
    if (XLA_FFI_Error* const error = completion.open()) return error;
    try {
      (state->waits->load(std::memory_order_relaxed) || must_look(*state->plan) ? run : start)(*state, buffers, completion);
    } catch (...) {
      completion(Failure::of_exception());  // no memory for what is called at the end
    }
    return completion.future();
  } catch (...) {
    return for_xla(api, current_error());
  }
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate, ffi::Ffi::BindInstantiate().Attr<GraphBytes>("graph"));
XLA_FFI_DEFINE_HANDLER(kExecute, execute,
                       ffi::Ffi::BindExecute()
                           .Ctx<const XLA_FFI_Api*>()
                           .Ctx<ffi::State<CallState>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<GraphBytes>("graph"));

XLA_FFI_Error* instantiate_handler(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    if (XLA_FFI_Error* error = register_type<CallState>(frame->api, "aspen_run_state")) return error;
  }
  return guarded<kInstantiate>(frame);
}

}  // namespace

FfiHandlers ffi_handlers(IsInterrupted interrupted) {
  is_interrupted = interrupted;
  return {reinterpret_cast<void*>(&instantiate_handler), reinterpret_cast<void*>(&guarded<kExecute>)};
}

}  // namespace aspen
