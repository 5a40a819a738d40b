#include "recorder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "observer.h"
#include "plan.h"
#include "plan_cache.h"
#include "runtime.h"

namespace nb = nanobind;

namespace aspen {
namespace {

constexpr size_t kColumns = 6;

// Which plan's tile ran where and when, of all runs that begin while it watches. Holds the plans, so that their addresses are not
// given to others meanwhile, and room for so many tiles; those after them are only counted.
class Recorder final : public Observer {
 public:
  explicit Recorder(size_t capacity) : records_(capacity) {}

  void on_tile(const TileEvent& event) noexcept override {
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

  // Rows of plan, run, tile, worker, begin and end. Runs that began before may still be writing; what they have not finished is
  // left out.
  std::vector<int64_t> rows() const {
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

  size_t num_seen() const { return next_.load(std::memory_order_relaxed); }
  // When the first tile began that found no room; 0 if there was none.
  int64_t first_left_out_ns() const { return first_left_out_ns_.load(std::memory_order_relaxed); }

  // The graph bytes of each plan, in the order of their numbers.
  std::vector<std::string> graphs() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> result;
    for (const Known& known : plans_) result.push_back(known.in_use.bytes);
    return result;
  }

 private:
  struct Known {
    PlanInUse in_use;
    int64_t number;
  };
  struct Record {
    std::atomic<const Known*> plan = nullptr;
    int64_t run, begin_ns, end_ns;
    int32_t tile, worker;
  };

  // Null only where memory is short; the tile then counts as one that found no room.
  const Known* known_plan(const Plan* plan) noexcept {
    // A cache without a lock, for otherwise all workers would queue at each tile.
    std::atomic<const Known*>& slot = last_[std::hash<const Plan*>{}(plan) / alignof(Plan) % last_.size()];
    const Known* const last = slot.load(std::memory_order_acquire);  // pairs with the release below
    if (last != nullptr && last->in_use.plan.get() == plan) return last;
    const std::lock_guard lock(mutex_);
    for (const Known& known : plans_) {
      if (known.in_use.plan.get() != plan) continue;
      slot.store(&known, std::memory_order_release);
      return &known;
    }
    try {
      // The run whose tile this is holds the plan, so it is in use.
      plans_.push_back({plan_in_use(plan), static_cast<int64_t>(plans_.size())});
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    slot.store(&plans_.back(), std::memory_order_release);
    return &plans_.back();
  }

  std::vector<Record> records_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> first_left_out_ns_ = 0;
  std::array<std::atomic<const Known*>, 64> last_{};
  mutable std::mutex mutex_;
  std::deque<Known> plans_;  // of which none moves when others come
};

// Shared with the runs that it watches, which may outlive Python's object.
class PyRecorder {
 public:
  explicit PyRecorder(size_t capacity) : recorder_(std::make_shared<Recorder>(capacity)) {}

  void start() const { runtime().set_observer(recorder_); }

  nb::tuple stop() const {
    runtime().set_observer(nullptr);
    const std::vector<int64_t> rows = recorder_->rows();
    const size_t left_out = recorder_->num_seen() - rows.size() / kColumns;
    nb::list graphs;
    for (const std::string& bytes : recorder_->graphs()) graphs.append(nb::bytes(bytes.data(), bytes.size()));
    return nb::make_tuple(nb::bytes(rows.data(), rows.size() * sizeof(int64_t)), graphs, left_out,
                          recorder_->first_left_out_ns());
  }

 private:
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace

void define_recorder(nb::module_& module) {
  nb::class_<PyRecorder>(module, "Recorder")
      .def(nb::init<size_t>(), nb::arg("capacity"))
      .def("start", &PyRecorder::start)
      .def("stop", &PyRecorder::stop);
}

}  // namespace aspen
