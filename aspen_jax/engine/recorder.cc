#include "recorder.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <new>
#include <utility>

#include "fork_safe_mutex.h"

namespace aspen {
namespace {

// Guards the plans of all recorders, which are looked up seldom.
ForkSafeMutex mutex;

}  // namespace

void Recorder::on_tile(const TileEvent& event) noexcept {
  const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= records_.size()) {
    if (index == records_.size()) first_left_out_ns_.store(event.begin_ns, std::memory_order_relaxed);
    return;
  }
  const Known* const known = known_plan(event.plan);
  if (known == nullptr) return;
  Record& record = records_[index];
  record.run = static_cast<int64_t>(event.run);
  record.tile = event.tile;
  record.worker = event.worker;
  record.begin_ns = event.begin_ns;
  record.end_ns = event.end_ns;
  record.plan.store(known, std::memory_order_release);  // pairs with the acquire in `rows`
}

std::vector<int64_t> Recorder::rows() const {
  std::vector<int64_t> result;
  const size_t count = std::min(next_.load(std::memory_order_relaxed), records_.size());
  result.reserve(kColumns * count);
  for (size_t i = 0; i < count; ++i) {
    const Record& record = records_[i];
    const Known* const known = record.plan.load(std::memory_order_acquire);
    if (known == nullptr) continue;
    result.insert(result.end(), {known->number, record.run, record.tile, record.worker, record.begin_ns, record.end_ns});
  }
  return result;
}

std::vector<std::string> Recorder::graphs() const {
  const std::lock_guard lock(mutex);
  std::vector<std::string> result;
  for (const Known& known : plans_) result.push_back(known.in_use.bytes);
  return result;
}

const Recorder::Known* Recorder::known_plan(const Plan* plan) noexcept {
  // A cache without a lock, for otherwise all workers would queue at each tile.
  std::atomic<const Known*>& slot = last_[std::hash<const Plan*>{}(plan) / alignof(Plan) % last_.size()];
  const Known* const last = slot.load(std::memory_order_acquire);  // pairs with the release below
  if (last != nullptr && last->in_use.plan.get() == plan) return last;
  const std::lock_guard lock(mutex);
  for (const Known& known : plans_) {
    if (known.in_use.plan.get() != plan) continue;
    slot.store(&known, std::memory_order_release);
    return &known;
  }
  try {
    // The run whose tile this is holds the plan, so it is in use.
    plans_.push_back({find_plan_(plan), static_cast<int64_t>(plans_.size())});
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  slot.store(&plans_.back(), std::memory_order_release);
  return &plans_.back();
}

}  // namespace aspen
