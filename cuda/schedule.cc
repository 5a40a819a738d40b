#include "schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace aspen::cuda {
namespace {

// In the order in which they begin: what runs where.
struct Placed {
  uint32_t launch;
  uint32_t stream;
};

// DSEs that walk the graph in simulated time.
class Walk {
 public:
  Walk(const Graph& graph, const LaunchGraph& launches, uint32_t num_streams, const DeviceModel& model)
      : graph_(graph), launches_(launches), model_(model), rows_(num_streams), idle_(num_streams, true) {}

  std::vector<Placed> run() {
    for (uint32_t launch = 0; launch < launches_.size(); ++launch) {
      parents_left_.push_back(static_cast<uint32_t>(launches_.parents_of(launch).size()));
      if (parents_left_.back() == 0) push(0, launch);
    }
    wake(0);
    while (!running_.empty()) {
      const auto [now, order, stream] = running_.top();
      running_.pop();
      idle_[stream] = true;
      end(order_[order].launch, stream, now);
      wake(now);
    }
    return std::move(order_);
  }

 private:
  using Entry = std::pair<int32_t, uint32_t>;  // depth, launch

  void push(uint32_t stream, uint32_t launch) { rows_[stream].emplace(graph_.ops[launches_.launches[launch].op].depth, launch); }

  void begin(uint32_t launch, uint32_t stream, int64_t now) {
    const Launch& item = launches_.launches[launch];
    const int64_t parallel = std::min<int64_t>(item.num_tiles, model_.num_sms);
    const int64_t end = now + model_.launch_ns + std::min(item.cost, kLongest) / parallel;
    running_.emplace(std::min(end, kLongest), static_cast<uint32_t>(order_.size()), stream);
    order_.push_back({launch, stream});
    idle_[stream] = false;
  }

  void end(uint32_t launch, uint32_t stream, int64_t now) {
    bool keeps = false;
    for (const uint32_t child : launches_.children_of(launch)) {
      if (--parents_left_[child] > 0) continue;
      if (std::exchange(keeps, true)) {
        push(stream, child);
      } else {
        begin(child, stream, now);
      }
    }
  }

  // Idle DSEs look for work, each in its own row first.
  void wake(int64_t now) {
    for (uint32_t stream = 0; stream < rows_.size(); ++stream) {
      for (uint32_t distance = 0; idle_[stream] && distance < rows_.size(); ++distance) {
        auto& row = rows_[(stream + distance) % rows_.size()];
        if (row.empty()) continue;
        const uint32_t launch = row.begin()->second;
        row.erase(row.begin());
        begin(launch, stream, now);
      }
    }
  }

  static constexpr int64_t kLongest = std::numeric_limits<int64_t>::max() / 2;

  const Graph& graph_;
  const LaunchGraph& launches_;
  const DeviceModel& model_;
  std::vector<std::set<Entry>> rows_;
  std::vector<bool> idle_;
  std::vector<uint32_t> parents_left_;
  std::vector<Placed> order_;
  // When a launch ends, its place in the order, its stream.
  using Running = std::tuple<int64_t, uint32_t, uint32_t>;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
};

// How much of each stream is known to be done: its first so many launches.
using Clock = std::vector<uint32_t>;

void merge(Clock& clock, const Clock& other) {
  for (size_t stream = 0; stream < clock.size(); ++stream) clock[stream] = std::max(clock[stream], other[stream]);
}

}  // namespace

Schedule traverse(const Graph& graph, const LaunchGraph& launches, uint32_t num_streams, const DeviceModel& model) {
  if (num_streams == 0) throw std::invalid_argument("a schedule needs at least one stream; ask for 1 or more");
  const std::vector<Placed> order = Walk(graph, launches, num_streams, model).run();

  // First who waits for whom: parents on other streams that are not known to be done, the latest first, for a wait brings along
  // what its parent had waited for.
  constexpr uint32_t kNone = ~uint32_t{0};
  struct Place {
    uint32_t stream = 0;
    uint32_t position = 0;  // among all launches
    Clock done;             // when it has ended
    bool is_awaited = false;
  };
  std::vector<Place> places(launches.size());
  std::vector<Clock> known(num_streams, Clock(num_streams));
  std::vector<uint32_t> last(num_streams, kNone);
  std::vector<std::vector<uint32_t>> waits(order.size() + 1);
  const auto await = [&](uint32_t stream, uint32_t launch, std::vector<uint32_t>& list) {
    Place& place = places[launch];
    if (known[stream][place.stream] >= place.done[place.stream]) return;
    place.is_awaited = true;
    merge(known[stream], place.done);
    list.push_back(launch);
  };
  std::vector<uint32_t> parents;
  for (uint32_t position = 0; position < order.size(); ++position) {
    const auto [launch, stream] = order[position];
    parents.assign(launches.parents_of(launch).begin(), launches.parents_of(launch).end());
    std::ranges::sort(parents, std::greater{}, [&](uint32_t parent) { return places[parent].position; });
    for (const uint32_t parent : parents) await(stream, parent, waits[position]);
    ++known[stream][stream];
    places[launch] = {stream, position, known[stream], false};
    last[stream] = launch;
  }
  std::vector<uint32_t> ends;
  for (uint32_t stream = 1; stream < num_streams; ++stream) {
    if (last[stream] != kNone) ends.push_back(last[stream]);
  }
  std::ranges::sort(ends, std::greater{}, [&](uint32_t launch) { return places[launch].position; });
  for (const uint32_t launch : ends) await(0, launch, waits.back());

  // Then what is issued, events only where somebody waits.
  Schedule schedule{num_streams, 0, {}};
  const auto issue = [&](Command::Kind kind, uint32_t stream, uint32_t index) {
    schedule.commands.push_back({kind, stream, index});
  };
  using enum Command::Kind;
  std::vector<uint32_t> event_of(launches.size(), kNone);
  uint32_t fork = kNone;
  for (uint32_t position = 0; position < order.size(); ++position) {
    const auto [launch, stream] = order[position];
    // A stream whose first launch waits for another comes after the caller's work by that.
    if (stream != 0 && places[launch].done[stream] == 1 && waits[position].empty()) {
      if (fork == kNone) schedule.commands.insert(schedule.commands.begin(), {kRecord, 0, fork = schedule.num_events++});
      issue(kWait, stream, fork);
    }
    for (const uint32_t parent : waits[position]) issue(kWait, stream, event_of[parent]);
    issue(kLaunch, stream, launch);
    if (places[launch].is_awaited) issue(kRecord, stream, event_of[launch] = schedule.num_events++);
  }
  for (const uint32_t launch : waits.back()) issue(kWait, 0, event_of[launch]);
  return schedule;
}

}  // namespace aspen::cuda
