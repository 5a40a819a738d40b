#include "limits.h"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace aspen {
namespace {

std::atomic<int64_t> most_workspace{Limits::kNone};
std::atomic<int64_t> most_nanoseconds{Limits::kNone};

int64_t now_ns() noexcept { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int64_t sum(int64_t a, int64_t b) noexcept {
  int64_t result;
  return __builtin_add_overflow(a, b, &result) ? Limits::kNone : result;
}

int64_t needed_bytes(const Plan& plan, int num_memories) noexcept {
  const auto memory = static_cast<int64_t>(plan.memory_bytes());
  int64_t of_each_other = memory;
  for (size_t i = 0; i < plan.num_results(); ++i) of_each_other = sum(of_each_other, plan.result(i).bytes);
  int64_t needed = sum(memory, static_cast<int64_t>(plan.scratch_bytes()));
  for (int memory = 1; memory < num_memories; ++memory) needed = sum(needed, of_each_other);
  return needed;
}

}  // namespace

Limits limits() noexcept {
  return {most_workspace.load(std::memory_order_relaxed), most_nanoseconds.load(std::memory_order_relaxed)};
}

void set_limits(const Limits& limits) {
  for (const auto& [name, number] : {std::pair("workspace", limits.workspace), {"nanoseconds", limits.nanoseconds}}) {
    if (number < 0) {
      throw std::invalid_argument(std::string("the limit ") + name + " is " + std::to_string(number) + "; pass 0 or more");
    }
  }
  most_workspace.store(limits.workspace, std::memory_order_relaxed);
  most_nanoseconds.store(limits.nanoseconds, std::memory_order_relaxed);
}

Watch::Watch(int64_t most_ns, std::function<bool()> interrupted)
    : most_ns_(most_ns),
      end_ns_(most_ns == Limits::kNone ? Limits::kNone : sum(now_ns(), most_ns)),
      interrupted_(std::move(interrupted)),
      next_look_ns_(now_ns() + kLookNs) {}

bool Watch::is_over() const noexcept {
  // Relaxed: nothing is read that the other thread wrote before.
  return was_interrupted_.load(std::memory_order_relaxed) || (end_ns_ != Limits::kNone && now_ns() >= end_ns_);
}

std::string Watch::why() const {
  if (was_interrupted_.load(std::memory_order_relaxed)) return "the run was interrupted";
  return "the run has taken longer than the limit of " + std::to_string(most_ns_) +
         " nanoseconds, so the tiles left were not run; raise the limit, or run a smaller graph";
}

bool Watch::wants_look() const noexcept { return interrupted_ != nullptr && now_ns() >= next_look_ns_; }

void Watch::look() noexcept {
  if (interrupted_ != nullptr && interrupted_()) was_interrupted_.store(true, std::memory_order_relaxed);
  next_look_ns_ = now_ns() + kLookNs;
}

std::shared_ptr<Watch> watch_by_limits(const Plan& plan, std::function<bool()> interrupted, int num_memories) {
  const auto [workspace, nanoseconds] = limits();
  const int64_t needed = needed_bytes(plan, num_memories);
  if (needed > workspace) {
    throw std::runtime_error("a run of the graph needs a workspace and scratch of " + std::to_string(needed) +
                             " bytes, and the limit is " + std::to_string(workspace) +
                             "; raise the limit if you trust the graph");
  }
  if (nanoseconds == Limits::kNone && interrupted == nullptr) return nullptr;
  return std::make_shared<Watch>(nanoseconds, std::move(interrupted));
}

}  // namespace aspen
