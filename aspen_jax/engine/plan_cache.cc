#include "plan_cache.h"

#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "cpu/target.h"
#include "registry.h"

namespace aspen {
namespace {

const KernelRegistry& kernels_of_this_machine() {
  static const KernelRegistry registry = [] {
    KernelRegistry kernels;
    kernels.add(cpu::kernels(cpu::chosen_target()));
    return kernels;
  }();
  return registry;
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

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Plan>, std::less<>> plans_;
};

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

}  // namespace

std::shared_ptr<const Plan> plan_of(std::span<const std::byte> bytes) {
  const std::string_view key(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (auto plan = plan_cache().find(key)) return plan;
  return plan_cache().enter(key, std::make_shared<const Plan>(parse_graph(bytes), kernels_of_this_machine()));
}

}  // namespace aspen
