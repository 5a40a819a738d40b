// From tiles to commands for streams: launches are groups of tiles, and every order that the tiles need holds on the device.
#include <random>
#include <set>
#include <vector>

#include "aspen_jax/engine/graph.h"
#include "cuda/launch_graph.h"
#include "cuda/launcher.h"
#include "cuda/schedule.h"
#include "dag.h"
#include "engine_check.h"
#include "graph_builder.h"
#include "recording_launcher.h"

namespace aspen::testing {
namespace {

using cuda::Command;
using cuda::LaunchGraph;
using cuda::Schedule;

std::vector<uint32_t> launch_of_tiles(const Graph& graph, const LaunchGraph& launches) {
  constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<uint32_t> launch_of(graph.num_tiles(), kNone);
  for (uint32_t launch = 0; launch < launches.size(); ++launch) {
    for (const uint32_t tile : launches.tiles_of(launch)) {
      CHECK_EQ(launch_of[tile], kNone);
      launch_of[tile] = launch;
    }
  }
  for (const uint32_t launch : launch_of) CHECK(launch != kNone);
  return launch_of;
}

int64_t volume(std::span<const int32_t> box) {
  int64_t product = 1;
  for (size_t d = 0; d < box.size() / 2; ++d) product *= box[box.size() / 2 + d] - box[d];
  return product;
}

// The smallest box around the tiles of a launch.
std::vector<int32_t> box_of(const Graph& graph, const LaunchGraph& launches, size_t launch) {
  const auto first = graph.box_of(launches.tiles_of(launch)[0]);
  std::vector<int32_t> box(first.begin(), first.end());
  for (const uint32_t tile : launches.tiles_of(launch)) {
    for (size_t d = 0; d < box.size() / 2; ++d) {
      const size_t hi = box.size() / 2 + d;
      box[d] = std::min(box[d], graph.box_of(tile)[d]);
      box[hi] = std::max(box[hi], graph.box_of(tile)[hi]);
    }
  }
  return box;
}

// What group_tiles promises, and what nobody needs to be told twice: each launch lists each parent once.
void check_launches(const Graph& graph, const LaunchGraph& launches) {
  const auto launch_of = launch_of_tiles(graph, launches);
  std::set<std::pair<uint32_t, uint32_t>> edges;
  for (size_t tile = 0; tile < graph.num_tiles(); ++tile) {
    for (const int32_t child : graph.children_of(tile)) {
      CHECK(launch_of[tile] < launch_of[child]);
      edges.emplace(launch_of[tile], launch_of[child]);
    }
  }
  size_t num_parents = 0;
  for (uint32_t launch = 0; launch < launches.size(); ++launch) {
    int64_t of_tiles = 0, cost = 0;
    const auto ops = launches.ops_of(launch);
    CHECK_EQ(launches.launches[launch].op, ops[0]);
    const size_t tiles_of_op = launches.tiles_of(launch).size() / ops.size();
    CHECK_EQ(launches.tiles_of(launch).size() % ops.size(), 0u);
    for (size_t i = 0; i < launches.tiles_of(launch).size(); ++i) {
      const uint32_t tile = launches.tiles_of(launch)[i];
      CHECK_EQ(static_cast<uint32_t>(graph.tile_ops[tile]), ops[i / tiles_of_op]);
      of_tiles += volume(graph.box_of(tile));
      cost += graph.costs[tile];
    }
    if (ops.size() == 1) CHECK_EQ(of_tiles, volume(box_of(graph, launches, launch)));
    CHECK_EQ(cost, launches.launches[launch].cost);
    for (const uint32_t parent : launches.parents_of(launch)) CHECK(edges.contains({parent, launch}));
    for (const uint32_t child : launches.children_of(launch)) CHECK(edges.contains({launch, child}));
    num_parents += launches.parents_of(launch).size();
  }
  CHECK_EQ(num_parents, edges.size());
  CHECK_EQ(launches.children.size(), edges.size());
}

RecordingLauncher recorded(const LaunchGraph& launches, const Schedule& schedule) {
  RecordingLauncher recording(launches.size(), schedule);
  CHECK(cuda::issue(schedule, recording).error == nullptr);
  return recording;
}

// Whether the device would keep every promise: all is launched once, in an order that the graph allows, and joined.
bool is_right(const LaunchGraph& launches, const Schedule& schedule) {
  const RecordingLauncher recording = recorded(launches, schedule);
  bool right = recording.fault().empty() && recording.is_joined() && recording.num_launched() == launches.size();
  for (uint32_t launch = 0; launch < launches.size(); ++launch) {
    for (const uint32_t parent : launches.parents_of(launch)) right = right && recording.is_before(parent, launch);
  }
  return right;
}

Graph random_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto layers = 1 + static_cast<int>(random() % 12), width = 1 + static_cast<int>(random() % 24);
  Graph graph = parse_graph(encode_dag(random_dag(random, layers, width, 4), "any", 0));
  for (int64_t& cost : graph.costs) cost = static_cast<int64_t>(random() % 100'000);
  return graph;
}

TEST(tiles_are_launched_in_boxes) {
  // A grid of 6 x 5 tiles that is uneven, read by single tiles.
  GraphBuilder builder;
  const int64_t x = builder.operand(DType::kF32, {11, 9});
  const int64_t y = builder.result(DType::kF32, {11, 9});
  builder.op("grid", "any", {builder.whole(x)}, y);
  const std::vector<int64_t> rows{0, 1, 3, 4, 7, 10, 11}, columns{0, 2, 3, 5, 8, 9};
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    for (size_t j = 0; j + 1 < columns.size(); ++j) {
      builder.tile(0, {rows[i], columns[j]}, {rows[i + 1], columns[j + 1]}, static_cast<int64_t>(7 * i + j));
    }
  }
  const Graph graph = parse_graph(builder.encode());
  for (uint32_t fewest = 0; fewest < 40; ++fewest) {
    const LaunchGraph launches = cuda::group_tiles(graph, fewest);
    check_launches(graph, launches);
    for (const auto& launch : launches.launches) CHECK(launch.num_tiles >= std::min(fewest, 30u));
    if (fewest <= 1) CHECK_EQ(launches.size(), 30u);
    if (fewest > 15) CHECK_EQ(launches.size(), 1u);
  }
  // Halves are cut along the outer axis, and lie one after the other in memory.
  const LaunchGraph halves = cuda::group_tiles(graph, 15);
  CHECK_EQ(halves.size(), 2u);
  CHECK_EQ(box_of(graph, halves, 0)[2], 4);
  CHECK_EQ(box_of(graph, halves, 0)[3], 9);
}

TEST(tiles_that_order_two_ops_both_ways_are_launched_alone) {
  GraphBuilder builder;
  const int64_t x = builder.operand(DType::kF32, {2});
  const int64_t y = builder.result(DType::kF32, {2}), z = builder.result(DType::kF32, {2});
  builder.op("a", "any", {builder.whole(x)}, y);
  builder.op("b", "any", {builder.whole(x)}, z);
  for (const int64_t op : {0, 0, 1, 1}) {
    const int64_t at = static_cast<int64_t>(builder.tile_ops.size()) % 2;
    builder.tile(op, {at}, {at + 1});
  }
  builder.edge(0, 2);
  builder.edge(3, 1);
  const Graph graph = parse_graph(builder.encode());
  const LaunchGraph launches = cuda::group_tiles(graph, 2);
  CHECK_EQ(launches.size(), 4u);
  check_launches(graph, launches);
  CHECK(is_right(launches, cuda::traverse(graph, launches, 2)));
}

// Levels of some ops of two tiles each, which read tiles of the level before.
Graph levels_of_ops(std::mt19937_64& random, int levels, int width) {
  GraphBuilder builder;
  const int64_t x = builder.operand(DType::kF32, {2});
  for (int op = 0; op < levels * width; ++op) {
    builder.op("op", "any", {builder.whole(x)}, builder.result(DType::kF32, {2}), {}, op / width);
    for (const int64_t at : {0, 1}) builder.tile(op, {at}, {at + 1}, static_cast<int64_t>(random() % 1'000));
  }
  const auto in_level = [&] { return static_cast<int64_t>(random() % (2 * static_cast<unsigned>(width))); };
  for (int64_t tile = 2 * width; tile < 2 * levels * width; ++tile) {
    std::set<int64_t> parents{in_level(), in_level()};
    for (const int64_t parent : parents) builder.edge((tile / (2 * width) - 1) * 2 * width + parent, tile);
  }
  return parse_graph(builder.encode());
}

TEST(ops_that_are_launched_together_keep_every_order) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const int levels = 1 + static_cast<int>(random() % 6), width = 1 + static_cast<int>(random() % 6);
    const Graph graph = levels_of_ops(random, levels, width);
    std::vector<int32_t> launched_with;
    std::set<int32_t> firsts;
    for (int op = 0; op < levels * width; ++op) {
      const int first = op / width * width + static_cast<int>(random() % static_cast<unsigned>(op % width + 1));
      launched_with.push_back(first == op ? op : launched_with[static_cast<size_t>(first)]);
      firsts.insert(launched_with.back());
    }
    const LaunchGraph launches = cuda::group_tiles(graph, 100, launched_with);
    CHECK_EQ(launches.size(), firsts.size());
    check_launches(graph, launches);
    for (uint32_t launch = 0; launch < launches.size(); ++launch) {
      for (const uint32_t op : launches.ops_of(launch)) {
        CHECK_EQ(launched_with[op], static_cast<int32_t>(launches.launches[launch].op));
      }
    }
    for (const uint32_t streams : {1u, 3u}) CHECK(is_right(launches, cuda::traverse(graph, launches, streams)));
  }
}

TEST(ops_that_wait_for_each_other_are_not_launched_together) {
  std::mt19937_64 random(0);
  const Graph graph = levels_of_ops(random, 3, 1);
  const LaunchGraph launches = cuda::group_tiles(graph, 100, std::vector<int32_t>{0, 0, 2});
  CHECK_EQ(launches.size(), graph.num_tiles());
  check_launches(graph, launches);
}

TEST(every_order_holds_on_the_device) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Graph graph = random_graph(seed);
    for (const uint32_t fewest : {1u, 2u, 5u, 100u}) {
      const LaunchGraph launches = cuda::group_tiles(graph, fewest);
      check_launches(graph, launches);
      for (const uint32_t streams : {1u, 2u, 3u, 8u}) {
        const Schedule schedule = cuda::traverse(graph, launches, streams);
        CHECK(is_right(launches, schedule));
        CHECK(cuda::traverse(graph, launches, streams).commands == schedule.commands);
        if (streams == 1) CHECK_EQ(schedule.commands.size(), launches.size());
      }
    }
  }
}

TEST(each_command_is_needed) {
  size_t num_waits = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = random_graph(seed);
    const LaunchGraph launches = cuda::group_tiles(graph, 2);
    const Schedule schedule = cuda::traverse(graph, launches, 4);
    for (size_t i = 0; i < schedule.commands.size(); ++i) {
      Schedule faulty = schedule;
      faulty.commands.erase(faulty.commands.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK(!is_right(launches, faulty));
      num_waits += schedule.commands[i].kind == Command::Kind::kWait;
    }
  }
  CHECK(num_waits > 100);
}

TEST(a_launch_that_comes_too_early_is_noticed) {
  size_t num_moved = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = random_graph(seed);
    const LaunchGraph launches = cuda::group_tiles(graph, 1);
    const Schedule schedule = cuda::traverse(graph, launches, 3);
    for (size_t i = 1; i < schedule.commands.size(); ++i) {
      const Command before = schedule.commands[i - 1], command = schedule.commands[i];
      if (before.kind != Command::Kind::kWait || command.kind != Command::Kind::kLaunch || before.stream != command.stream)
        continue;
      Schedule faulty = schedule;
      std::swap(faulty.commands[i - 1], faulty.commands[i]);
      CHECK(!is_right(launches, faulty));
      ++num_moved;
    }
  }
  CHECK(num_moved > 100);
}

// Fails from some call on.
class BreakingLauncher : public RecordingLauncher {
 public:
  BreakingLauncher(size_t num_launches, const Schedule& schedule, size_t calls_left)
      : RecordingLauncher(num_launches, schedule), calls_left_(calls_left) {}
  const char* launch(uint32_t stream, uint32_t launch) noexcept override {
    if (calls_left_-- == 0) return "no more launches";
    return RecordingLauncher::launch(stream, launch);
  }

 private:
  size_t calls_left_;
};

TEST(streams_are_joined_after_an_error) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Graph graph = random_graph(seed);
    const LaunchGraph launches = cuda::group_tiles(graph, 2);
    const Schedule schedule = cuda::traverse(graph, launches, 4);
    for (size_t calls = 0; calls < launches.size(); ++calls) {
      BreakingLauncher breaking(launches.size(), schedule, calls);
      const cuda::Issued issued = cuda::issue(schedule, breaking);
      CHECK_EQ(std::string(issued.error), "no more launches");
      CHECK(schedule.commands[issued.command].kind == Command::Kind::kLaunch);
      CHECK_EQ(breaking.num_launched(), calls);
      CHECK(breaking.is_joined());
      CHECK_EQ(breaking.fault(), "");
    }
  }
}

TEST(independent_launches_take_streams_of_their_own) {
  Dag dag;
  for (int chain = 0; chain < 4; ++chain) dag.add(0, {});
  for (int layer = 1; layer < 5; ++layer) {
    for (int chain = 0; chain < 4; ++chain) dag.add(layer, {(layer - 1) * 4 + chain});
  }
  const Graph graph = parse_graph(encode_dag(dag, "any", 10'000));
  const LaunchGraph launches = cuda::group_tiles(graph, 1);
  const Schedule schedule = cuda::traverse(graph, launches, 4);
  CHECK(is_right(launches, schedule));
  // Four chains, a stream each: a fork, three beginnings and three ends to wait for, nothing in between.
  CHECK_EQ(schedule.commands.size(), 20u + 1 + 3 + 2 * 3);
  CHECK_THROWS(cuda::traverse(graph, launches, 0), "at least one stream");
}

TEST(a_large_graph_is_scheduled_in_a_moment) {
  const int steps = ASPEN_SMALL_TESTS ? 50 : 500;
  const Graph graph = parse_graph(encode_dag(stencil_dag(steps, 200), "any", 1000));
  const LaunchGraph launches = cuda::group_tiles(graph, 32);
  check_launches(graph, launches);
  CHECK(is_right(launches, cuda::traverse(graph, launches, 8)));
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
