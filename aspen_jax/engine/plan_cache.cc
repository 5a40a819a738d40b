#include "plan_cache.h"

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cpu/cache.h"
#include "cpu/target.h"
#include "fork_safe_mutex.h"
#include "kernel_library.h"
#include "registry.h"

namespace aspen {
namespace {

// All that is made once for the process is made under the lock, also inside cpu/, so that a fork waits for it.
ForkSafeMutex kernels_mutex;

// Of this machine and of users' libraries. What is here is not changed, but replaced under the lock: a plan may be looking.
// Called with the lock. Never destroyed: a thread may parse while the process exits.
std::shared_ptr<const KernelRegistry>& known_kernels() {
  static std::shared_ptr<const KernelRegistry>& registry = []() -> std::shared_ptr<const KernelRegistry>& {
    KernelRegistry kernels;
    kernels.add(cpu::kernels(cpu::chosen_target()));
    cpu::l2_cache_bytes();
    auto made = std::make_shared<const KernelRegistry>(std::move(kernels));
    return *std::make_unique<std::shared_ptr<const KernelRegistry>>(std::move(made)).release();
  }();
  return registry;
}

std::shared_ptr<const KernelRegistry> kernels_of_this_process() {
  const std::lock_guard lock(kernels_mutex);
  return known_kernels();
}

// Keyed by the bytes themselves: a digest could be made to collide, and then a caller would get another's graph.
class PlanCache {
 public:
  std::shared_ptr<const Plan> find(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(bytes);
    return found == plans_.end() ? nullptr : found->second.lock();
  }

  // Returns the plan that another thread has entered meanwhile, if any.
  std::shared_ptr<const Plan> enter(std::string_view bytes, std::shared_ptr<const Plan> plan) {
    const std::lock_guard lock(mutex_);
    std::erase_if(plans_, [](const auto& entry) { return entry.second.expired(); });
    const auto [entry, is_new] = plans_.try_emplace(std::string(bytes), plan);
    if (is_new) return plan;
    if (auto earlier = entry->second.lock()) return earlier;
    entry->second = plan;
    return plan;
  }

  PlanInUse in_use(const Plan* plan) {
    const std::lock_guard lock(mutex_);
    for (const auto& [bytes, entry] : plans_) {
      if (auto held = entry.lock(); held.get() == plan) return {std::move(held), bytes};
    }
    return {};
  }

 private:
  ForkSafeMutex mutex_;
  std::map<std::string, std::weak_ptr<const Plan>, std::less<>> plans_;
};

// The graphs that were trusted last. One that is forgotten before its call is compiled only runs slower.
class TrustedGraphs {
 public:
  void add(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = graphs_.emplace(bytes);
    if (!is_new) return;
    try {
      in_order_.push_back(entry);
    } catch (...) {
      graphs_.erase(entry);
      throw;
    }
    total_bytes_ += bytes.size();
    for (; total_bytes_ > kMostBytes; in_order_.pop_front()) {
      total_bytes_ -= in_order_.front()->size();
      graphs_.erase(in_order_.front());
    }
  }

  bool contains(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    return graphs_.contains(bytes);
  }

 private:
  static constexpr size_t kMostBytes = size_t{32} << 20;
  using Graphs = std::set<std::string, std::less<>>;  // the bytes themselves, as for plans

  ForkSafeMutex mutex_;
  Graphs graphs_;
  std::deque<Graphs::iterator> in_order_;
  size_t total_bytes_ = 0;
};

// Made when the library is loaded, before anybody can fork, and never destroyed: a thread may parse while the process exits.
TrustedGraphs& trusted_graphs = *std::make_unique<TrustedGraphs>().release();
PlanCache& plan_cache = *std::make_unique<PlanCache>().release();

std::string_view key_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

std::shared_ptr<const Plan> plan_of(std::span<const std::byte> bytes) {
  const std::string_view key = key_of(bytes);
  if (auto plan = plan_cache.find(key)) return plan;
  const bool trusted = trusted_graphs.contains(key);
  return plan_cache.enter(key, std::make_shared<const Plan>(parse_graph(bytes), *kernels_of_this_process(), trusted));
}

PlanInUse plan_in_use(const Plan* plan) { return plan_cache.in_use(plan); }

void trust(std::span<const std::byte> bytes) { trusted_graphs.add(key_of(bytes)); }

std::vector<std::string> register_kernels(const std::string& path) {
  const std::span<const Kernel> shown = load_kernels(path);
  std::vector<std::string> names;
  for (const Kernel& kernel : shown) names.emplace_back(kernel.name);
  const std::lock_guard lock(kernels_mutex);
  KernelRegistry kernels = *known_kernels();
  kernels.add(shown);
  known_kernels() = std::make_shared<const KernelRegistry>(std::move(kernels));
  return names;
}

}  // namespace aspen
