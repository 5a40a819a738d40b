#include "virtual_time.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "algorithm1.h"
#include "ready_tiles.h"
#include "runtime.h"

namespace aspen {
namespace {

// Lanes that share what is ready.
struct Domain {
  Domain(const Policy& policy, int lane, int lanes, Traversal& traversal, std::span<const int32_t> levels)
      : ready(policy, lanes, traversal, levels), first_lane(lane), num_lanes(lanes) {}

  ReadyTiles ready;
  const int first_lane, num_lanes;
  int next_row = 0;  // for the next tile that comes from outside
  int64_t num_queued = 0;
};

class VirtualRun final : public Traversal {
 public:
  VirtualRun(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds, const Policy& policy,
             const PlaceTile& place)
      : Traversal(graph.tiles(), graph.children().data(), graph.depths().size()),
        graph_(graph),
        machine_(machine),
        nanoseconds_(nanoseconds),
        place_(place),
        transfers_(graph, machine),
        is_idle_(static_cast<size_t>(machine.num_lanes()), true),
        caches_(static_cast<size_t>(machine.num_lanes())),
        resources_(place ? graph.num_tiles() : 0, kNowhere) {
    restart(policy, graph.parents(), [&](size_t op) { return graph.depths()[op]; }, graph.max_depth());
    const int num_domains = place ? machine.num_resources() : 1;
    for (int i = 0; i < num_domains; ++i) {
      const int first_lane = place ? machine.first_lane(i) : 0, num_lanes = place ? machine.lanes(i) : machine.num_lanes();
      domains_.push_back(std::make_unique<Domain>(policy, first_lane, num_lanes, *this, graph.depths()));
    }
    placed_.reserve(graph.num_tiles());
  }

  Simulation run() && {
    if (place_) {
      for (const int32_t root : graph_.roots()) admit(static_cast<uint32_t>(root), 0, kNowhere);
    } else {
      Domain& all = *domains_[0];
      spread_roots(*this, graph_.roots(), static_cast<size_t>(all.num_lanes), 0,
                   [&](int row, const Batch& batch) { push(all, row, batch); });
    }
    for (int64_t now = 0;;) {
      // By an exact order a lane chooses among all that is ready at the moment, whatever happens first in it.
      if (!policy().is_exact || events_.empty() || std::get<0>(events_.top()) > now) take_up(now);
      if (events_.empty()) break;
      const auto [then, order, lane, tile] = events_.top();
      events_.pop();
      now = then;
      if (lane == kArrival) {
        enter(tile, kNowhere);
      } else {
        transfers_.computed(tile, machine_.memory(machine_.resource(lane)), now);
        const uint32_t kept = finished(*this, policy(), tile, caches_[static_cast<size_t>(lane)], Company{*this, lane, now});
        is_idle_[static_cast<size_t>(lane)] = kept == kNoTile;
        if (kept != kNoTile) begin(kept, lane, now);
      }
    }
    return {std::move(placed_), std::move(transfers_.copies())};
  }

 private:
  static constexpr int kNowhere = -1, kArrival = -1;

  struct Company : Alone {
    Company(VirtualRun& its_run, int its_lane, int64_t its_now) : run(its_run), lane(its_lane), now(its_now) {}
    VirtualRun& run;
    int lane;
    int64_t now;

    bool may_keep(uint32_t child) const {
      if (!run.place_) return true;
      const int resource = run.resource_of(child, now);
      return resource == run.machine_.resource(lane) && run.transfers_.is_there(child, run.machine_.memory(resource), now);
    }

    void push(const Batch& batch) const {
      if (!run.place_) {
        run.push(*run.domains_[0], lane, batch);
        return;
      }
      const Node* next = batch.first;
      for (int i = 0; i < batch.size; ++i) {
        const Node* const node = std::exchange(next, next->next);  // before the node goes into another queue
        run.admit(run.tile_of(node), now, lane);
      }
    }
  };

  int64_t nanoseconds(uint32_t tile, int resource) const {
    const int64_t lasts =
        nanoseconds_[size_t{tile} * static_cast<size_t>(machine_.num_resources()) + static_cast<size_t>(resource)];
    if (lasts < kNever) return lasts;
    throw std::invalid_argument("tile " + std::to_string(tile) + " came to resource " + std::to_string(resource) +
                                ", which has no kernel for it; a policy must place it where there is one");
  }

  // Asks the policy once.
  int resource_of(uint32_t tile, int64_t now) {
    int& resource = resources_[tile];
    if (resource != kNowhere) return resource;
    const int wanted = machine_.checked_place(tile, place_(tile, now));
    nanoseconds(tile, wanted);
    return resource = wanted;
  }

  // A tile that has become ready goes to its resource, behind copies of what it reads.
  void admit(uint32_t tile, int64_t now, int lane) {
    const int64_t arrival = transfers_.fetch(tile, machine_.memory(resource_of(tile, now)), now);
    if (arrival > now) {
      events_.emplace(arrival, num_events_++, kArrival, tile);
    } else {
      enter(tile, lane);
    }
  }

  // Into the row of the lane that made it ready, or into the next one of its resource where that was another's.
  void enter(uint32_t tile, int lane) {
    const int resource = resources_[tile];
    Domain& domain = *domains_[static_cast<size_t>(resource)];
    Batch batch;
    batch.add(&node(tile));
    if (lane != kNowhere && machine_.resource(lane) == resource) {
      push(domain, lane - domain.first_lane, batch);
    } else {
      push(domain, domain.next_row, batch);
      domain.next_row = (domain.next_row + 1) % domain.num_lanes;
    }
  }

  void push(Domain& domain, int row, const Batch& batch) {
    domain.ready.push(row, batch);
    domain.num_queued += batch.size;
  }

  void begin(uint32_t tile, int lane, int64_t now) {
    const int resource = machine_.resource(lane);
    const int64_t lasts = nanoseconds(tile, resource);
    if (!place_) now = transfers_.fetch(tile, machine_.memory(resource), now);
    const int64_t end = std::min(now + lasts, kNever);
    placed_.push_back({tile, lane, now, end});
    events_.emplace(end, num_events_++, lane, tile);
  }

  // Idle lanes take what is queued.
  void take_up(int64_t now) {
    for (const auto& domain : domains_) {
      for (int row = 0; domain->num_queued > 0 && row < domain->num_lanes; ++row) {
        const int lane = domain->first_lane + row;
        if (!is_idle_[static_cast<size_t>(lane)]) continue;
        const Node* const node = domain->ready.pop(row);
        if (node == nullptr) throw std::logic_error("a policy's victims leave out a row that holds tiles");
        is_idle_[static_cast<size_t>(lane)] = false;
        --domain->num_queued;
        begin(tile_of(node), lane, now);
      }
    }
  }

  const VirtualGraph& graph_;
  const VirtualMachine& machine_;
  std::span<const int64_t> nanoseconds_;
  const PlaceTile& place_;
  Transfers transfers_;
  std::vector<std::unique_ptr<Domain>> domains_;
  std::vector<bool> is_idle_;  // of each lane
  std::vector<ChildCache> caches_;
  std::vector<int> resources_;  // of each tile that was placed
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
