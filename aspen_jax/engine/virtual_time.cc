#include "virtual_time.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "algorithm1.h"
#include "placing.h"

namespace aspen {
namespace {

// Lanes that idle are found again at every moment, so it is enough to know how many tiles wait for one.
struct Queued {
  int64_t num_tiles = 0;
  void wake(int more) { num_tiles += more; }
};

class VirtualRun final : public Placing<VirtualRun, Queued> {
 public:
  VirtualRun(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds, const Policy& policy,
             const PlaceTile& place)
      : Placing(graph, machine, policy, place),
        nanoseconds_(nanoseconds),
        transfers_(graph, machine),
        is_idle_(static_cast<size_t>(machine.num_lanes()), true),
        caches_(static_cast<size_t>(machine.num_lanes())) {
    placed_.reserve(graph.num_tiles());
  }

  Simulation run() && {
    push_roots();
    for (int64_t now = 0;;) {
      // By an exact order a lane chooses among all that is ready at the moment, whatever happens first in it.
      if (!policy().is_exact || events_.empty() || std::get<0>(events_.top()) > now) take_up(now);
      if (events_.empty()) break;
      const auto [then, order, lane, tile] = events_.top();
      events_.pop();
      now = then;
      if (lane == kArrival) {
        arrived({&tile, 1});
      } else {
        transfers_.computed(tile, machine_.memory(machine_.resource(lane)), now);
        const uint32_t kept = finished(*this, policy(), tile, caches_[static_cast<size_t>(lane)], Company{{}, *this, lane, now});
        is_idle_[static_cast<size_t>(lane)] = kept == kNoTile;
        if (kept != kNoTile) begin(kept, lane, now);
      }
    }
    return {std::move(placed_), std::move(transfers_.copies())};
  }

  // Of Placing. A tile that waits for copies is an event.
  int decide(uint32_t tile, int64_t now) const {
    const int resource = asked(tile, now);
    nanoseconds(tile, resource);
    return resource;
  }
  bool fetch(uint32_t tile, int memory, int64_t now) {
    const int64_t arrival = transfers_.fetch(tile, memory, now);
    if (arrival > now) events_.emplace(arrival, num_events_++, kArrival, tile);
    return arrival <= now;
  }
  bool is_there(uint32_t tile, int memory, int64_t now) const { return transfers_.is_there(tile, memory, now); }

 private:
  static constexpr int kArrival = -1;

  struct Company : Alone {
    VirtualRun& run;
    int lane;
    int64_t now;

    bool may_keep(uint32_t child) const { return run.may_keep(child, lane, now); }
    void push(const Batch& batch) const { run.push(batch, lane, now); }
  };

  // Throws std::invalid_argument where there is no kernel.
  int64_t nanoseconds(uint32_t tile, int resource) const {
    const int64_t lasts =
        nanoseconds_[size_t{tile} * static_cast<size_t>(machine_.num_resources()) + static_cast<size_t>(resource)];
    if (lasts < kNever) return lasts;
    throw std::invalid_argument("tile " + std::to_string(tile) + " came to resource " + std::to_string(resource) +
                                ", which has no kernel for it; a policy must place it where there is one");
  }

  void begin(uint32_t tile, int lane, int64_t now) {
    const int resource = machine_.resource(lane);
    const int64_t lasts = nanoseconds(tile, resource);
    if (!is_placed()) now = transfers_.fetch(tile, machine_.memory(resource), now);
    const int64_t end = std::min(now + lasts, kNever);
    placed_.push_back({tile, lane, now, end});
    events_.emplace(end, num_events_++, lane, tile);
  }

  // Idle lanes take what is queued.
  void take_up(int64_t now) {
    for (const auto& domain : domains_) {
      for (int row = 0; domain->waiting.num_tiles > 0 && row < domain->num_lanes; ++row) {
        const int lane = domain->first_lane + row;
        if (!is_idle_[static_cast<size_t>(lane)]) continue;
        const Node* const node = domain->ready.pop(row);
        if (node == nullptr) throw std::logic_error("a policy's victims leave out a row that holds tiles");
        is_idle_[static_cast<size_t>(lane)] = false;
        --domain->waiting.num_tiles;
        begin(tile_of(node), lane, now);
      }
    }
  }

  std::span<const int64_t> nanoseconds_;
  Transfers transfers_;
  std::vector<bool> is_idle_;  // of each lane
  std::vector<ChildCache> caches_;
  std::vector<Placed> placed_;
  // Time, number of the event, the lane whose tile ends or kArrival, tile.
  using Event = std::tuple<int64_t, uint64_t, int, uint32_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t num_events_ = 0;
};

}  // namespace

void check_times(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds) {
  const size_t wanted = graph.num_tiles() * static_cast<size_t>(machine.num_resources());
  if (nanoseconds.size() != wanted) {
    throw std::invalid_argument(std::to_string(nanoseconds.size()) + " times for " + std::to_string(graph.num_tiles()) +
                                " tiles and " + std::to_string(machine.num_resources()) + " resources; give one for each pair");
  }
  const auto negative = std::ranges::find_if(nanoseconds, [](int64_t time) { return time < 0; });
  if (negative == nanoseconds.end()) return;
  throw std::invalid_argument("the time of tile " + std::to_string((negative - nanoseconds.begin()) / machine.num_resources()) +
                              " is " + std::to_string(*negative) + "; a time is 0 or more nanoseconds");
}

Simulation simulate(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds,
                    const Policy& policy, const PlaceTile& place) {
  check_times(graph, machine, nanoseconds);
  return VirtualRun(graph, machine, nanoseconds, policy, place).run();
}

}  // namespace aspen
