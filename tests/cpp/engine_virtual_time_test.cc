// Simulated time: every tile runs once, after its parents, by one DSE at a time, and no DSE idles while a tile is ready.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "aspen_jax/engine/expectation.h"
#include "aspen_jax/engine/graph.h"
#include "aspen_jax/engine/runtime.h"
#include "aspen_jax/engine/virtual_time.h"
#include "dag.h"
#include "virtual_graph.h"

namespace aspen::testing {
namespace {

std::vector<int64_t> random_times(std::mt19937_64& random, size_t count, uint64_t longest) {
  std::vector<int64_t> times(count);
  for (int64_t& time : times) time = static_cast<int64_t>(random() % (longest + 1));
  return times;
}

// Each tile's row of `placed`; checks that each has one.
std::vector<Placed> by_tile(const std::vector<Placed>& placed, size_t num_tiles) {
  CHECK_EQ(placed.size(), num_tiles);
  std::vector<Placed> rows(num_tiles, Placed{0, -1, 0, 0});
  for (const Placed& row : placed) {
    CHECK_EQ(rows[row.tile].lane, -1);
    rows[row.tile] = row;
  }
  return rows;
}

TEST(simulations_are_right_and_greedy) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    const Dag dag = random_dag(random, 1 + i % 30, 10, 4);
    const VirtualGraph graph = virtual_graph(parse_graph(encode_dag(dag, "any", 1)));
    const std::vector<int64_t> times = random_times(random, dag.size(), i % 3 == 0 ? 2 : 1000);
    for (const int dses : {1, 2, 3, 17, 64}) {
      for (const Policy* policy : {&kShallowFirst, &kChildCacheOf4, &kChildCacheOf16, &kImportantFirst, &kAllThroughPool,
                                   &kFirstReadyFirst, &kSingleQueue}) {
        const auto placed = simulate(graph, lanes(dses), times, *policy).tiles;
        const auto rows = by_tile(placed, dag.size());
        CHECK(std::is_sorted(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.begin < b.begin; }));
        std::vector<int64_t> free(static_cast<size_t>(dses)), path(dag.size());
        for (const Placed& row : placed) {
          CHECK(row.begin >= free[row.lane]);
          free[row.lane] = row.end;
        }
        int64_t work = 0, span = 0, critical = 0;
        for (size_t tile = 0; tile < dag.size(); ++tile) {
          CHECK_EQ(rows[tile].end - rows[tile].begin, times[tile]);
          for (const int32_t parent : dag.parents[tile]) {
            CHECK(rows[tile].begin >= rows[parent].end);
            path[tile] = std::max(path[tile], path[parent]);
          }
          path[tile] += times[tile];
          work += times[tile];
          span = std::max(span, rows[tile].end);
          critical = std::max(critical, path[tile]);
        }
        CHECK(span >= critical && span * dses >= work);
        // Graham's bound for greedy schedules; a DSE with a child cache keeps tiles from others that idle.
        if (policy->kept_children <= 1) CHECK(span * dses <= work + critical * (dses - 1));
      }
    }
  }
}

// Two CPUs in one memory and an accelerator in another, behind a slow link.
VirtualMachine mixed_machine() {
  const VirtualLink none{0, 0}, there{50, 2}, back{30, 0.5};
  return VirtualMachine({2, 1, 3}, {0, 0, 1}, {none, there, back, none});
}

struct MixedCase {
  explicit MixedCase(uint64_t seed)
      : random(seed), dag(random_dag(random, 12, 8, 4)), bytes(random_times(random, dag.size(), 99)) {
    const Graph graph = parse_graph(encode_dag(dag, "any", 1));
    for (size_t i = 0; i < graph.children.size(); ++i) is_read.push_back(random() % 4 != 0);
    virtual_ = std::make_unique<VirtualGraph>(virtual_graph(graph, bytes, is_read));
    times = random_times(random, dag.size() * 3, 300);
    for (size_t i = 0; i < times.size(); ++i) {
      if (i % 3 == 2 && random() % 5 == 0) times[i] = kNever;  // no kernel on the accelerator
    }
  }
  const VirtualGraph& graph() const { return *virtual_; }

  std::mt19937_64 random;
  Dag dag;
  std::vector<int64_t> bytes, times;
  std::vector<uint8_t> is_read;
  VirtualMachine machine = mixed_machine();

 private:
  std::unique_ptr<VirtualGraph> virtual_;
};

// Where and from when each tile's box is, told from what a simulation says, and whether all of that is possible.
void check_mixed(const MixedCase& given, const Simulation& simulation) {
  const VirtualMachine& machine = given.machine;
  const auto rows = by_tile(simulation.tiles, given.dag.size());
  std::map<std::pair<uint32_t, int>, int64_t> present;
  std::vector<int64_t> lane_free(static_cast<size_t>(machine.num_lanes())), link_free(4);
  for (const Placed& row : simulation.tiles) {
    const int resource = machine.resource(row.lane);
    CHECK(row.begin >= lane_free[row.lane]);
    CHECK_EQ(row.end - row.begin, given.times[row.tile * 3 + static_cast<size_t>(resource)]);
    lane_free[row.lane] = row.end;
    present[{row.tile, machine.memory(resource)}] = row.end;
  }
  for (const Copy& copy : simulation.copies) {
    CHECK(copy.from != copy.to && !present.contains({copy.tile, copy.to}));
    CHECK(copy.begin >= present.at({copy.tile, copy.from}));
    int64_t& free = link_free[machine.link_index(copy.from, copy.to)];
    CHECK(copy.begin >= free);
    free = copy.end;
    const VirtualLink& link = machine.links()[machine.link_index(copy.from, copy.to)];
    const auto lasts = std::llround(static_cast<double>(given.bytes[copy.tile]) * link.ns_per_byte);
    const int64_t latency = copy.end - copy.begin - lasts;
    CHECK(latency == 0 || latency == link.latency_ns);
    present[{copy.tile, copy.to}] = copy.end;
  }
  for (const Placed& row : simulation.tiles) {
    for (const uint32_t parent : given.graph().parents_of(row.tile)) CHECK(row.begin >= rows[parent].end);
    const int memory = machine.memory(machine.resource(row.lane));
    for (const uint32_t read : given.graph().read_by(row.tile)) CHECK(present.at({read, memory}) <= row.begin);
  }
}

TEST(what_a_tile_reads_is_copied_before_it_begins) {
  size_t num_copies = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    MixedCase given(seed);
    std::vector<int> places;
    for (size_t tile = 0; tile < given.dag.size(); ++tile) {
      int place = static_cast<int>(given.random() % 3);
      if (given.times[tile * 3 + static_cast<size_t>(place)] >= kNever) place = 0;
      places.push_back(place);
    }
    size_t num_asked = 0;
    const auto place = [&](uint32_t tile, int64_t) {
      ++num_asked;
      return places[tile];
    };
    const Simulation simulation = simulate(given.graph(), given.machine, given.times, kShallowFirst, place);
    CHECK_EQ(num_asked, given.dag.size());
    check_mixed(given, simulation);
    for (const Placed& row : simulation.tiles) CHECK_EQ(given.machine.resource(row.lane), places[row.tile]);
    num_copies += simulation.copies.size();
    // Whoever is idle takes what is there; lanes wait for copies.
    for (int64_t& time : given.times) time = std::min(time, int64_t{300});
    check_mixed(given, simulate(given.graph(), given.machine, given.times));
  }
  CHECK(num_copies > 1000);
}

TEST(expectations_are_kept_by_tiles_in_the_order_of_assignment) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const MixedCase given(seed);
    Expectation expectation(given.graph(), given.machine, given.times);
    CHECK_THROWS(expectation.assign(0, 3), "no resource 3");
    int64_t latest = 0;
    for (uint32_t tile = 0; tile < given.dag.size(); ++tile) {
      const int best = expectation.earliest_resource(tile);
      for (int resource = 0; resource < 3; ++resource) {
        CHECK(expectation.earliest_finish(tile, best) <= expectation.earliest_finish(tile, resource));
      }
      const int64_t end = expectation.earliest_finish(tile, best);
      for (const uint32_t parent : given.graph().parents_of(tile)) CHECK(expectation.is_assigned(parent));
      expectation.assign(tile, best);
      CHECK_THROWS(expectation.assign(tile, best), "is assigned already");
      latest = std::max(latest, end);
    }
    CHECK(latest > 0 && latest < kNever);
  }
  const MixedCase given(3);
  Expectation expectation(given.graph(), given.machine, given.times);
  uint32_t child = 0;
  while (given.dag.parents[child].empty()) ++child;
  CHECK_THROWS(expectation.earliest_finish(child, 0), "is not assigned yet");
}

// The best of all schedules on two resources of one lane each: every order that the arrows allow, every place.
struct BruteForce {
  const VirtualGraph& graph;
  const std::vector<int64_t>& times;
  std::vector<int64_t> ends = std::vector<int64_t>(graph.num_tiles(), -1);
  std::vector<std::pair<uint32_t, int>> order = {}, best_order = {};
  int64_t best = kNever;

  void search(int64_t free_0, int64_t free_1) {
    if (std::max(free_0, free_1) >= best) return;
    if (order.size() == graph.num_tiles()) {
      best = std::max(free_0, free_1);
      best_order = order;
      return;
    }
    for (uint32_t tile = 0; tile < graph.num_tiles(); ++tile) {
      const auto parents = graph.parents_of(tile);
      const auto is_open = [&](uint32_t parent) { return ends[parent] < 0; };
      if (ends[tile] >= 0 || std::ranges::any_of(parents, is_open)) continue;
      int64_t ready = 0;
      for (const uint32_t parent : parents) ready = std::max(ready, ends[parent]);
      for (const int resource : {0, 1}) {
        ends[tile] = std::max(ready, resource == 0 ? free_0 : free_1) + times[tile * 2 + static_cast<size_t>(resource)];
        order.emplace_back(tile, resource);
        search(resource == 0 ? ends[tile] : free_0, resource == 1 ? ends[tile] : free_1);
        order.pop_back();
      }
      ends[tile] = -1;
    }
  }
};

TEST(no_schedule_beats_brute_force_and_the_best_one_is_expected_as_it_is) {
  std::mt19937_64 random(11);
  const VirtualMachine machine({1, 1}, {0, 0}, {{}});
  for (int i = 0; i < 24; ++i) {
    Dag dag;
    for (const size_t size = 2 + i % 8; dag.size() < size;) {
      std::vector<int32_t> parents;
      for (size_t parent = 0; parent < dag.size(); ++parent) {
        if (random() % 3 == 0) parents.push_back(static_cast<int32_t>(parent));
      }
      const auto number = static_cast<int>(dag.size());
      dag.add(number, std::move(parents));
    }
    const VirtualGraph graph = virtual_graph(parse_graph(encode_dag(dag, "any", 1)));
    const std::vector<int64_t> times = random_times(random, dag.size() * 2, 40);
    BruteForce brute_force{graph, times};
    brute_force.search(0, 0);
    Expectation expectation(graph, machine, times);
    int64_t last = 0;
    for (const auto& [tile, resource] : brute_force.best_order) {
      last = std::max(last, expectation.earliest_finish(tile, resource));
      expectation.assign(tile, resource);
    }
    CHECK_EQ(last, brute_force.best);
    int64_t nearest = kNever;
    for (size_t places = 0; places < size_t{1} << dag.size(); ++places) {
      const auto place = [&](uint32_t tile, int64_t) { return static_cast<int>(places >> tile & 1); };
      int64_t span = 0;
      for (const Placed& placed : simulate(graph, machine, times, kShallowFirst, place).tiles) span = std::max(span, placed.end);
      nearest = std::min(nearest, span);
    }
    CHECK(nearest >= brute_force.best && nearest * 4 <= brute_force.best * 5);
  }
}

TEST(a_policy_that_places_wrongly_is_named) {
  const MixedCase given(1);
  const auto simulated = [&](const PlaceTile& place) {
    simulate(given.graph(), given.machine, given.times, kShallowFirst, place);
  };
  CHECK_THROWS(simulated([](uint32_t, int64_t) { return 3; }), "is placed on resource 3 of 3");
  CHECK_THROWS(simulated([](uint32_t, int64_t) { return -1; }), "is placed on resource -1 of 3");
  CHECK_THROWS(simulated([](uint32_t, int64_t) { return 2; }), "has no kernel for it");
  CHECK_THROWS(simulated([](uint32_t, int64_t) -> int { throw std::runtime_error("no idea"); }), "no idea");
}

TEST(times_that_never_end_do_not_overflow) {
  Dag dag;
  for (int i = 0; i < 4; ++i) dag.add(i, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  const VirtualGraph graph = virtual_graph(parse_graph(encode_dag(dag, "any", 1)));
  for (const Placed& row : simulate(graph, lanes(2), std::vector<int64_t>(4, kNever - 1)).tiles)
    CHECK(row.begin >= 0 && row.end >= kNever - 1 && row.end <= kNever);
}

TEST(what_does_not_fit_is_refused) {
  const std::vector<int64_t> counts{1, 0}, children{1}, ops{0, 1}, depths{0, 1};
  const VirtualGraph graph(counts, children, ops, depths);
  CHECK_THROWS(simulate(graph, lanes(1), std::vector<int64_t>{1}), "1 times for 2 tiles and 1 resources");
  CHECK_THROWS(simulate(graph, lanes(1), std::vector<int64_t>{1, -1}), "the time of tile 1 is -1");
  CHECK_THROWS(simulate(graph, lanes(1), std::vector<int64_t>{1, kNever}), "tile 1 came to resource 0");
  CHECK_THROWS(lanes(0), "0 lanes");
  CHECK_THROWS(lanes(kMaxWorkers + 1), "1025 lanes");
  CHECK_THROWS(VirtualMachine({}, {}, {{}}), "at least one resource");
  CHECK_THROWS(VirtualMachine({1}, {1}, {{}}), "memory 1 of 1");
  CHECK_THROWS(VirtualMachine({1}, {0}, {}), "a link for each pair");
  CHECK_THROWS(VirtualMachine({1}, {0}, {{0, NAN}}), "no finite number");
  CHECK_THROWS(VirtualMachine({1}, {0}, {{-1, 1}}), "negative");
  CHECK_THROWS(VirtualGraph(std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 0}, ops, depths), "cycle");
  CHECK_THROWS(VirtualGraph(std::vector<int64_t>{1, 0}, std::vector<int64_t>{2}, ops, depths), "child 0 is 2");
  CHECK_THROWS(VirtualGraph(std::vector<int64_t>{1, 1}, children, ops, depths), "do not add up");
  CHECK_THROWS(VirtualGraph(std::vector<int64_t>{0, 0}, children, ops, depths), "do not add up");
  CHECK_THROWS(VirtualGraph(counts, children, std::vector<int64_t>{0, -2}, depths), "the op of tile 1 is -2");
  CHECK_THROWS(VirtualGraph(counts, children, std::vector<int64_t>{0}, depths), "each tile needs an op");
  CHECK_THROWS(VirtualGraph(counts, children, ops, std::vector<int64_t>{0, -1}), "the depth of tile 1 is -1");
  CHECK(simulate(VirtualGraph({}, {}, {}, {}), lanes(3), {}).tiles.empty());
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
