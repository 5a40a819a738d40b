#include "schedule.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "aspen_jax/engine/virtual_time.h"

namespace aspen::cuda {
namespace {

// DSEs with a stream each walk the launches in simulated time.
std::vector<Placed> walk(const Graph& graph, const LaunchGraph& launches, uint32_t num_streams, const DeviceModel& model) {
  std::vector<int64_t> child_counts, ops, depths, nanoseconds;
  for (size_t launch = 0; launch < launches.size(); ++launch) {
    const Launch& item = launches.launches[launch];
    child_counts.push_back(static_cast<int64_t>(launches.children_of(launch).size()));
    ops.push_back(item.op);
    depths.push_back(graph.ops[item.op].depth);
    nanoseconds.push_back(model.launch_ns + std::min(item.cost, kNever) / std::min<int64_t>(item.num_tiles, model.num_sms));
  }
  const std::vector<int64_t> children(launches.children.begin(), launches.children.end());
  const VirtualMachine device({static_cast<int>(num_streams)}, {0}, {{}});
  return simulate(VirtualGraph(child_counts, children, ops, depths), device, nanoseconds).tiles;
}

// How much of each stream is known to be done: its first so many launches.
using Clock = std::vector<uint32_t>;

void merge(Clock& clock, const Clock& other) {
  for (size_t stream = 0; stream < clock.size(); ++stream) clock[stream] = std::max(clock[stream], other[stream]);
}

}  // namespace

Schedule traverse(const Graph& graph, const LaunchGraph& launches, uint32_t num_streams, const DeviceModel& model) {
  if (num_streams == 0) throw std::invalid_argument("a schedule needs at least one stream; ask for 1 or more");
  const std::vector<Placed> order = walk(graph, launches, num_streams, model);

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
    const uint32_t launch = order[position].tile, stream = static_cast<uint32_t>(order[position].lane);
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
    const uint32_t launch = order[position].tile, stream = static_cast<uint32_t>(order[position].lane);
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
