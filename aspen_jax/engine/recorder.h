// Every tile of every run of a time: which plan's, where and when.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "observer.h"
#include "plan.h"

namespace aspen {

// A plan that is in use, and the bytes that it was made of.
struct PlanInUse {
  std::shared_ptr<const Plan> plan;
  std::string bytes;
};

// Records the tiles of all runs that begin while it watches. Holds the plans, so that their addresses are not given to others
// meanwhile, and room for so many tiles; those after them are only counted.
class Recorder final : public Observer {
 public:
  static constexpr size_t kColumns = 6;
  using FindPlan = PlanInUse (*)(const Plan*);

  // `find_plan` is asked once a plan, by the worker that ends the first tile of it.
  Recorder(size_t capacity, FindPlan find_plan) : records_(capacity), find_plan_(find_plan) {}

  void on_tile(const TileEvent& event) noexcept override;

  // Rows of plan, run, tile, worker, begin and end. Runs that began before may still be writing; what they have not finished is
  // left out.
  std::vector<int64_t> rows() const;

  size_t num_seen() const { return next_.load(std::memory_order_relaxed); }
  // The time at which the first tile began that found no room; 0 if there was none.
  int64_t first_left_out_ns() const { return first_left_out_ns_.load(std::memory_order_relaxed); }

  // The graph bytes of each plan, in the order of their numbers.
  std::vector<std::string> graphs() const;

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
  const Known* known_plan(const Plan* plan) noexcept;

  std::vector<Record> records_;
  FindPlan find_plan_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> first_left_out_ns_ = 0;
  std::array<std::atomic<const Known*>, 64> last_{};
  // A lock of the process guards these (recorder.cc).
  std::deque<Known> plans_;  // of which none moves when others come
};

}  // namespace aspen
