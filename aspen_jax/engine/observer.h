// A seam for those who want to watch: timelines, tests of the order of execution. The engine pays one branch a tile for it.
#pragma once

#include <cstdint>

namespace aspen {

class Plan;

struct TileEvent {
  const Plan* plan;
  uint64_t run;  // counts the runs of the process
  int32_t tile;
  int worker;        // the DSE's row in the Ready Pool, or kCallerThread
  int64_t begin_ns;  // steady clock
  int64_t end_ns;
  bool has_failed = false;
  bool has_paused = false;  // it is run once more
};

inline constexpr int kCallerThread = -1;

// Called by many workers at once, right after each tile, and where one pauses.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_tile(const TileEvent& event) noexcept = 0;
};

}  // namespace aspen
