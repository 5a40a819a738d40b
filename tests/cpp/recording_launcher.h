// A device that runs nothing and remembers what CUDA would have been asked, with a vector clock for each stream: it knows which
// launches had to be over before which began.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/launcher.h"

namespace aspen::testing {

class RecordingLauncher : public cuda::Launcher {
 public:
  RecordingLauncher(size_t num_launches, const cuda::Schedule& schedule)
      : streams_(schedule.num_streams, Clock(schedule.num_streams)),
        events_(schedule.num_events),
        forked_(schedule.num_streams),
        launches_(num_launches) {}

  const char* launch(uint32_t stream, uint32_t launch) noexcept override {
    if (launches_[launch]) return note("a launch comes twice");
    if (stream != 0 && !forked_[stream]) note("a stream begins before the caller's work is done");
    ++streams_[stream][stream];
    launches_[launch] = Launched{stream, streams_[stream]};
    return nullptr;
  }
  const char* record(uint32_t stream, uint32_t event) noexcept override {
    if (events_[event]) return note("an event is recorded twice");
    events_[event] = Event{streams_[stream], stream == 0 || forked_[stream]};
    return nullptr;
  }
  const char* wait(uint32_t stream, uint32_t event) noexcept override {
    // CUDA does not wait for what has not been recorded, and says nothing.
    if (!events_[event]) return note("an event is awaited before it is recorded");
    for (size_t i = 0; i < streams_.size(); ++i) streams_[stream][i] = std::max(streams_[stream][i], events_[event]->done[i]);
    if (events_[event]->is_after_caller) forked_[stream] = true;
    return nullptr;
  }

  bool is_before(uint32_t first, uint32_t second) const {
    const auto &a = launches_[first], &b = launches_[second];
    return a && b && a != b && b->done[a->stream] >= a->done[a->stream];
  }
  // Whether the caller's stream waits for all that was launched.
  bool is_joined() const {
    return std::ranges::all_of(launches_, [&](const auto& it) { return !it || streams_[0][it->stream] >= it->done[it->stream]; });
  }
  size_t num_launched() const {
    return static_cast<size_t>(std::ranges::count_if(launches_, [](const auto& it) { return it.has_value(); }));
  }
  // What no device would have said.
  const std::string& fault() const { return fault_; }

 private:
  using Clock = std::vector<uint32_t>;
  struct Launched {
    uint32_t stream;
    Clock done;  // once it is over
    friend bool operator==(const Launched&, const Launched&) = default;
  };
  struct Event {
    Clock done;
    bool is_after_caller;
  };

  const char* note(const char* fault) noexcept {
    if (fault_.empty()) fault_ = fault;
    return nullptr;
  }

  std::vector<Clock> streams_;
  std::vector<std::optional<Event>> events_;
  std::vector<bool> forked_;
  std::vector<std::optional<Launched>> launches_;
  std::string fault_;
};

}  // namespace aspen::testing
