// Runs of the lab: every tile once, after its parents, where it is placed, with what it reads copied there; no lane is left
// behind.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aspen_jax/engine/desk.h"
#include "aspen_jax/engine/outcome.h"
#include "aspen_jax/engine/placed_run.h"
#include "aspen_jax/engine/turns.h"
#include "dag.h"
#include "virtual_graph.h"

namespace aspen::testing {
namespace {

constexpr int kScale = ASPEN_SMALL_TESTS ? 1 : 4;

// Tasks that read their parents' values where their own memory has them. Each op reads all layers before it.
struct ReadingDag {
  explicit ReadingDag(Dag its_dag) : dag(std::move(its_dag)) {
    for (size_t i = 0; i < dag.size(); ++i) {
      const auto layer = static_cast<size_t>(dag.layer[i]);
      if (layer == first.size()) first.push_back(i);
    }
  }

  std::vector<std::byte> encode() const {
    GraphBuilder builder;
    const int64_t context = builder.operand(DType::kU8, {1});
    std::vector<int64_t> values;
    for (size_t layer = 0; layer < first.size(); ++layer) {
      const auto tasks = static_cast<int64_t>((layer + 1 < first.size() ? first[layer + 1] : dag.size()) - first[layer]);
      const bool is_last = layer + 1 == first.size();
      values.push_back(is_last ? builder.result(DType::kI64, {tasks}) : builder.workspace(DType::kI64, {tasks}));
    }
    for (size_t layer = 0; layer < first.size(); ++layer) {
      std::vector inputs{builder.whole(context)};
      for (size_t before = 0; before < layer; ++before) inputs.push_back(builder.whole(values[before]));
      builder.op("layer" + std::to_string(layer), "reading", inputs, values[layer], {static_cast<int64_t>(first[layer])},
                 static_cast<int64_t>(layer));
    }
    for (size_t i = 0; i < dag.size(); ++i) {
      const auto at = static_cast<int64_t>(i - first[static_cast<size_t>(dag.layer[i])]);
      builder.tile(dag.layer[i], {at}, {at + 1}, 1);
      for (const int32_t parent : dag.parents[i]) builder.edge(parent, static_cast<int64_t>(i));
    }
    return builder.encode();
  }

  template <typename Value>
  int64_t compute(size_t task, const Value& value) const {
    uint64_t hash = 0x9E3779B97F4A7C15u * (task + 1);
    for (const int32_t parent : dag.parents[task]) {
      hash = (hash ^ static_cast<uint64_t>(value(static_cast<size_t>(parent)))) * 0xBF58476D1CE4E5B9u + (hash >> 31);
    }
    return static_cast<int64_t>(hash);
  }

  std::vector<int64_t> expected() const {
    std::vector<int64_t> values(dag.size());
    for (size_t i = 0; i < dag.size(); ++i) values[i] = compute(i, [&](size_t parent) { return values[parent]; });
    return {values.begin() + static_cast<std::ptrdiff_t>(first.back()), values.end()};
  }

  Dag dag;
  std::vector<size_t> first;  // task of each layer
};

const char* run_reading(const TileArgs& args) noexcept {
  const auto& graph = *static_cast<const ReadingDag*>(args.inputs[0]);
  const auto task = static_cast<size_t>(static_cast<const FirstTask*>(args.state)->task + args.lo[0]);
  static_cast<int64_t*>(args.output)[args.lo[0]] = graph.compute(task, [&](size_t parent) {
    const auto layer = static_cast<size_t>(graph.dag.layer[parent]);
    return static_cast<const int64_t*>(args.inputs[1 + layer])[parent - graph.first[layer]];
  });
  return nullptr;
}

PreparedOp prepare_reading(const OpSpec& spec) { return {std::make_unique<FirstTask>(spec.params[0]), run_reading, 0}; }

std::vector<LaneKind> plain(const VirtualMachine& machine) {
  return std::vector<LaneKind>(static_cast<size_t>(machine.num_resources()));
}

Simulation run_on(const std::shared_ptr<const Plan>& plan, const void* context, std::vector<int64_t>& result,
                  const VirtualGraph& graph, const VirtualMachine& machine, const PlaceTile& place,
                  const Policy& policy = kShallowFirst) {
  const void* operands[] = {context};
  result.assign(static_cast<size_t>(plan->result(0).dense.shape[0]), 0);
  void* results[] = {result.data()};
  return run_placed(plan, operands, results, graph, machine, plain(machine), policy, place);
}

void check_order(const Dag& dag, const VirtualMachine& machine, const std::vector<Placed>& tiles) {
  CHECK_EQ(tiles.size(), dag.size());
  std::vector<std::vector<Placed>> lanes(static_cast<size_t>(machine.num_lanes()));
  for (size_t tile = 0; tile < dag.size(); ++tile) {
    CHECK_EQ(tiles[tile].tile, tile);
    for (const int32_t parent : dag.parents[tile]) CHECK(tiles[tile].begin >= tiles[static_cast<size_t>(parent)].end);
    lanes[static_cast<size_t>(tiles[tile].lane)].push_back(tiles[tile]);
  }
  for (auto& lane : lanes) {
    std::ranges::sort(lane, {}, [](const Placed& placed) { return std::pair(placed.begin, placed.end); });
    for (size_t i = 1; i < lane.size(); ++i) CHECK(lane[i].begin >= lane[i - 1].end);
  }
}

VirtualMachine one_memory(std::vector<int> lanes) {
  std::vector<int> memories(lanes.size());
  return {std::move(lanes), std::move(memories), {{}}};
}

// A resource at the host, one of two lanes in a memory of its own, one in a third. `last` leads from the third to the second.
VirtualMachine three_memories(const VirtualLink& last = {3'000, 1}) {
  const VirtualLink own{0, 0}, fast{3'000, 1}, slow{20'000, 100};
  return VirtualMachine({1, 2, 1}, {0, 1, 2}, {own, fast, slow, fast, own, fast, slow, last, own});
}

// A place for each tile, which any thread may ask for.
PlaceTile at_random(const std::vector<int>& places) {
  return [&places](uint32_t tile, int64_t) { return places[tile]; };
}

std::vector<int> random_places(std::mt19937_64& random, size_t count, int resources) {
  std::vector<int> places(count);
  for (int& place : places) place = static_cast<int>(random() % static_cast<uint64_t>(resources));
  return places;
}

TEST(random_places_in_one_memory) {
  std::mt19937_64 random(1);
  size_t num_tiles = 0;
  for (int i = 0; i < 60 * kScale; ++i) {
    const Dag dag = random_dag(random, 1 + static_cast<int>(random() % 60), 1 + static_cast<int>(random() % 120), 5);
    const auto plan = recorded_plan(dag, 1);
    const VirtualGraph graph = virtual_graph(plan->graph());
    std::vector<int> lanes(1 + random() % 3);
    for (int& count : lanes) count = 1 + static_cast<int>(random() % 3);
    const VirtualMachine machine = one_memory(lanes);
    const std::vector<int> places = random_places(random, dag.size(), machine.num_resources());
    for (const Policy* policy : {&kShallowFirst, &kAllThroughPool, &kFirstReadyFirst}) {
      for (const bool is_placed : {true, false}) {
        Recording recording(dag);
        std::vector<int64_t> result;
        const PlaceTile place = is_placed ? at_random(places) : PlaceTile();
        const Simulation run = run_on(plan, &recording, result, graph, machine, place, *policy);
        recording.check();
        check_order(dag, machine, run.tiles);
        for (const Placed& placed : run.tiles) {
          if (is_placed) CHECK_EQ(machine.resource(placed.lane), places[placed.tile]);
        }
        num_tiles += dag.size();
      }
    }
  }
  std::printf("  %zu tiles\n", num_tiles);
}

TEST(what_a_tile_reads_is_in_its_memory) {
  static constexpr Kernel kKernels[] = {{"reading", prepare_reading}};
  std::mt19937_64 random(2);
  size_t num_copies = 0, num_seen = 0, num_planted = 0;
  for (int i = 0; i < 25 * kScale; ++i) {
    const ReadingDag given(random_dag(random, 2 + static_cast<int>(random() % 10), 1 + static_cast<int>(random() % 12), 4));
    const auto plan = make_plan(given.encode(), kKernels);
    const std::vector<int64_t> bytes(given.dag.size(), 8);
    std::vector<uint8_t> is_read(plan->graph().children.size(), 1);
    const VirtualGraph graph = virtual_graph(plan->graph(), bytes, is_read);
    const VirtualMachine machine = three_memories();
    const std::vector<int> places = random_places(random, given.dag.size(), 3);
    const PlaceTile place = at_random(places);
    std::vector<int64_t> result;
    const Simulation run = run_on(plan, &given, result, graph, machine, place);
    CHECK(result == given.expected());
    check_order(given.dag, machine, run.tiles);
    std::map<std::pair<uint32_t, int>, int64_t> arrival;
    for (const Copy& copy : run.copies) {
      CHECK(arrival.emplace(std::pair(copy.tile, copy.to), copy.end).second);
      CHECK(copy.end - copy.begin >= 8);  // as long as the fastest link takes
    }
    for (const Placed& placed : run.tiles) {
      const int memory = machine.memory(machine.resource(placed.lane));
      for (const int32_t parent : given.dag.parents[placed.tile]) {
        const auto read = static_cast<uint32_t>(parent);
        if (machine.memory(machine.resource(run.tiles[read].lane)) != memory) CHECK(arrival.at({read, memory}) <= placed.begin);
      }
    }
    num_copies += run.copies.size();
    // An arrow that is taken for one that carries nothing: where its copy is missed, the result shows it.
    std::ranges::fill(is_read, 0);
    const Simulation without = run_on(plan, &given, result, virtual_graph(plan->graph(), bytes, is_read), machine, place);
    CHECK(without.copies.empty());
    num_planted += !run.copies.empty();
    num_seen += result != given.expected();
  }
  std::printf("  %zu copies, %zu of %zu planted faults seen\n", num_copies, num_seen, num_planted);
  CHECK(num_copies > 100 && num_seen * 10 >= num_planted * 8);  // what misses a copy need not lead to a result
}

TEST(where_no_link_leads_the_run_fails) {
  static constexpr Kernel kKernels[] = {{"reading", prepare_reading}};
  Dag chain;
  for (int i = 0; i < 9; ++i) chain.add(i, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  const ReadingDag given(std::move(chain));
  const auto plan = make_plan(given.encode(), kKernels);
  const VirtualGraph graph = virtual_graph(plan->graph(), std::vector<int64_t>(9, 8), std::vector<uint8_t>(8, 1));
  std::vector<int64_t> result;
  const auto place = [](uint32_t tile, int64_t) { return tile < 4 ? 2 : 1; };  // from the third memory to the second
  CHECK_THROWS(run_on(plan, &given, result, graph, three_memories({}), place), "no link brings to memory 1 what tile 4 reads");
}

struct FailAt {
  explicit FailAt(const Dag& dag) : recording(dag) {}
  Recording recording;
  size_t task = ~size_t{0};
};

const char* run_or_fail(const TileArgs& args) noexcept {
  auto& context = *static_cast<FailAt*>(const_cast<void*>(args.inputs[0]));
  const auto task = static_cast<size_t>(static_cast<const FirstTask*>(args.state)->task + args.lo[0]);
  context.recording.execute(task);
  return task == context.task ? "this tile does not like its input" : nullptr;
}

TEST(failures_of_tiles_and_places_end_the_run) {
  static constexpr Kernel kKernels[] = {{"may fail", prepare_task<run_or_fail>}};
  std::mt19937_64 random(3);
  for (int i = 0; i < 10 * kScale; ++i) {
    const Dag dag = random_dag(random, 20, 20, 4);
    const auto plan = make_plan(encode_dag(dag, "may fail", 1), kKernels);
    const std::vector<int64_t> bytes(dag.size(), 8);
    const VirtualGraph graph = virtual_graph(plan->graph(), bytes, std::vector<uint8_t>(plan->graph().children.size(), 1));
    const auto bad = static_cast<uint32_t>(random() % dag.size());
    for (const VirtualMachine& machine : {one_memory({2, 1}), three_memories()}) {
      const std::vector<int> places = random_places(random, dag.size(), machine.num_resources());
      std::vector<int64_t> result;
      FailAt fails(dag), healthy(dag);
      fails.task = bad;
      CHECK_THROWS(run_on(plan, &fails, result, graph, machine, at_random(places)),
                   plan->describe_tile(bad) + " failed: this tile does not like its input");
      const auto refuse = [&](uint32_t tile, int64_t) -> int {
        return tile == bad ? throw std::logic_error("no idea") : places[tile];
      };
      FailAt unused(dag), unused_too(dag);
      CHECK_THROWS(run_on(plan, &unused, result, graph, machine, refuse), "no idea");
      const auto nowhere = [&](uint32_t tile, int64_t) { return tile == bad ? 7 : places[tile]; };
      CHECK_THROWS(run_on(plan, &unused_too, result, graph, machine, nowhere), "is placed on resource 7 of ");
      run_on(plan, &healthy, result, graph, machine, at_random(places));
      healthy.recording.check();
    }
  }
}

TEST(a_failure_in_the_lab_stays_there) {
  static constexpr Kernel kKernels[] = {{"may fail", prepare_task<run_or_fail>}};
  const Dag dag = stencil_dag(4, 6);
  const auto plan = make_plan(encode_dag(dag, "may fail", kInPool), kKernels);
  const VirtualGraph graph = virtual_graph(plan->graph());
  for (const bool is_tile : {true, false}) {
    FailAt fails(dag), healthy(dag);
    if (is_tile) fails.task = 7;
    std::vector<int64_t> result;
    const auto place = [&](uint32_t, int64_t) -> int { return is_tile ? 0 : throw std::logic_error("no idea"); };
    CHECK_THROWS(run_on(plan, &fails, result, graph, one_memory({2}), place), is_tile ? "does not like" : "no idea");
    // The process's run has the state that the lab's has left.
    const auto outcome = std::make_shared<Outcome>();
    DagRun run(*plan);
    run.submit(plan, &healthy, [outcome](const Failure& failure) { outcome->set(failure); });
    CHECK(outcome->wait().empty());
    healthy.recording.check();
  }
}

// Threads of this process that would take a signal to end it.
int threads_that_take_signals() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:")) count += (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1) == 0;
    }
  }
  return count;
}

std::atomic<int> most_that_take_signals{0};

const char* run_counting_threads(const TileArgs&) noexcept {
  most_that_take_signals = std::max(most_that_take_signals.load(), threads_that_take_signals());
  return nullptr;
}

TEST(signals_are_for_the_threads_of_the_application) {
  static constexpr Kernel kKernels[] = {{"counting threads", prepare_task<run_counting_threads>}};
  const Dag dag = stencil_dag(2, 2);
  const auto plan = make_plan(encode_dag(dag, "counting threads", 1), kKernels);
  std::vector<int64_t> result;
  // Lanes and couriers are there. This thread takes none while it starts the last of them.
  run_on(plan, &dag, result, virtual_graph(plan->graph()), three_memories(), [](uint32_t, int64_t) { return 0; });
  CHECK(most_that_take_signals.load() <= 1);
}

TEST(many_runs_at_once) {
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    threads.emplace_back([seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 5 * kScale; ++i) {
        const Dag dag = random_dag(random, 30, 30, 4);
        const auto plan = recorded_plan(dag, 1);
        const VirtualGraph graph = virtual_graph(plan->graph());
        const VirtualMachine machine = one_memory({2, 1});
        const std::vector<int> places = random_places(random, dag.size(), 2);
        Recording recording(dag);
        std::vector<int64_t> result;
        run_on(plan, &recording, result, graph, machine, at_random(places));
        recording.check();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(a_lane_follows_the_simulated_order_where_time_does_not_decide_it) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20 * kScale; ++i) {
    // Two halves without an arrow between them, each on a lane of its own.
    Dag dag;
    const Dag half = random_dag(random, 15, 10, 3);
    for (size_t task = 0; task < half.size(); ++task) {
      const auto shifted = [&](int32_t by) {
        std::vector<int32_t> parents;
        for (const int32_t parent : half.parents[task]) parents.push_back(2 * parent + by);
        return parents;
      };
      dag.add(half.layer[task], shifted(0));
      dag.add(half.layer[task], shifted(1));
    }
    const auto plan = recorded_plan(dag, 1);
    const VirtualGraph graph = virtual_graph(plan->graph());
    const VirtualMachine machine = one_memory({1, 1});
    const auto place = [](uint32_t tile, int64_t) { return static_cast<int>(tile % 2); };
    const auto simulated = simulate(graph, machine, std::vector<int64_t>(2 * dag.size(), 1), kShallowFirst, place).tiles;
    Recording recording(dag);
    std::vector<int64_t> result;
    auto real = run_on(plan, &recording, result, graph, machine, place).tiles;
    for (const int lane : {0, 1}) {
      const auto order = [&](std::vector<Placed> tiles) {
        std::erase_if(tiles, [&](const Placed& placed) { return placed.lane != lane; });
        std::ranges::stable_sort(tiles, {}, [](const Placed& placed) { return std::pair(placed.begin, placed.end); });
        std::vector<uint32_t> numbers;
        for (const Placed& placed : tiles) numbers.push_back(placed.tile);
        return numbers;
      };
      CHECK(order(simulated) == order(real));
    }
  }
}

std::atomic<int> num_times{0};

const char* run_counting(const TileArgs&) noexcept {
  ++num_times;
  return nullptr;
}

TEST(a_tile_is_run_as_often_as_its_resource_says) {
  static constexpr Kernel kKernels[] = {{"counting", prepare_task<run_counting>}};
  Dag dag;
  for (int i = 0; i < 10; ++i) dag.add(0, {});
  const auto plan = make_plan(encode_dag(dag, "counting", 1), kKernels);
  const VirtualGraph graph = virtual_graph(plan->graph());
  const VirtualMachine machine = one_memory({1, 1});
  int64_t result[10];
  void* results[] = {result};
  const void* operands[] = {result};
  const std::vector<LaneKind> kinds{{1, {0}}, {5, {}}};
  run_placed(plan, operands, results, graph, machine, kinds, kShallowFirst, [](uint32_t tile, int64_t) { return tile < 4; });
  CHECK_EQ(num_times.load(), 6 + 4 * 5);
}

TEST(by_an_exact_order_the_lowest_level_goes_first_and_no_child_is_kept) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20 * kScale; ++i) {
    const Dag dag = random_dag(random, 2 + i % 30, 6, 3);
    const auto plan = recorded_plan(dag, 1);
    const Graph& graph = plan->graph();
    std::vector<int64_t> counts, ops, levels;
    for (size_t tile = 0; tile < dag.size(); ++tile) {
      counts.push_back(static_cast<int64_t>(graph.children_of(tile).size()));
      ops.push_back(graph.tile_ops[tile]);
      levels.push_back(static_cast<int64_t>(random() % 200));
    }
    const VirtualGraph by_level(counts, std::vector<int64_t>(graph.children.begin(), graph.children.end()), ops, levels);
    Recording recording(dag);
    std::vector<int64_t> result;
    const auto tiles = run_on(plan, &recording, result, by_level, lanes(1), {}, kExact).tiles;
    // The oracle: of all that is ready, the least by level and number.
    std::vector<size_t> order(dag.size());
    for (size_t tile = 0; tile < dag.size(); ++tile) order[tile] = tile;
    std::ranges::sort(order, {}, [&](size_t tile) { return std::pair(tiles[tile].begin, tiles[tile].end); });
    std::vector<bool> is_done(dag.size());
    for (const size_t tile : order) {
      for (size_t other = 0; other < dag.size(); ++other) {
        const bool is_ready = !is_done[other] && std::ranges::all_of(dag.parents[other], [&](int32_t parent) {
          return is_done[static_cast<size_t>(parent)];
        });
        if (is_ready) CHECK(std::pair(levels[tile], tile) <= std::pair(levels[other], other));
      }
      is_done[tile] = true;
    }
    // Others take part: every tile once, after its parents.
    const VirtualMachine many = one_memory({2, 3, 1});
    std::vector<int> places(dag.size());
    for (int& place : places) place = static_cast<int>(random() % 3);
    Recording again(dag);
    check_order(dag, many, run_on(plan, &again, result, by_level, many, at_random(places), kExact).tiles);
  }
}

TEST(values_that_share_memory_are_refused_where_there_are_several) {
  GraphBuilder builder;
  const int64_t context = builder.operand(DType::kU8, {1});
  const int64_t first = builder.workspace(DType::kI64, {4}), second = builder.workspace(DType::kI64, {4});
  const int64_t last = builder.result(DType::kI64, {4});
  builder.values[static_cast<size_t>(second)].offset = 0;  // where `first` lies
  builder.workspace_bytes = 64;                            // that of one value
  int64_t depth = 0;
  for (const int64_t output : {first, second, last}) {
    builder.op("op", "reading", {builder.whole(context)}, output, {0}, depth);
    builder.tile(depth, {0}, {4}, 1);
    if (depth > 0) builder.edge(depth - 1, depth);
    ++depth;
  }
  const Kernel kKernels[] = {{"reading", prepare_reading}};
  const auto plan = make_plan(builder.encode(), kKernels);
  std::vector<int64_t> result;
  CHECK_THROWS(run_on(plan, nullptr, result, virtual_graph(plan->graph()), three_memories(), [](uint32_t, int64_t) { return 0; }),
               "share memory, and a late copy");
}

TEST(the_calling_thread_is_asked_and_may_end_the_run) {
  const Dag dag = stencil_dag(4, 30);
  const auto plan = recorded_plan(dag, 1);
  const VirtualGraph graph = virtual_graph(plan->graph());
  std::atomic<int> num_asked{0}, num_over{0};
  const auto caller = std::this_thread::get_id();
  for (const int most : {1'000'000, 20, 0}) {
    Desk desk;
    Recording recording(dag);
    const VirtualMachine machine = one_memory({2, 2});
    int64_t numbers[64];
    const void* operands[] = {&recording};
    void* results[] = {numbers};
    Attendant attendant;
    attendant.attend = [&] {
      desk.serve(std::chrono::milliseconds(1));
      if (num_asked >= most) throw std::runtime_error("enough");
    };
    attendant.over = [&] {
      desk.close();
      ++num_over;
    };
    attendant.is_lost = [] { return false; };
    std::mutex turn;
    num_asked = num_over = 0;
    const PlaceTile place = [&](uint32_t tile, int64_t) {
      const std::lock_guard lock(turn);
      return desk.ask([&] {
        CHECK(std::this_thread::get_id() == caller);
        ++num_asked;
        return static_cast<int>(tile % 2);
      });
    };
    const auto run = [&] {
      run_placed(plan, operands, results, graph, machine, plain(machine), kShallowFirst, place, attendant);
    };
    if (most > 1000) {
      run();
      CHECK_EQ(num_asked.load(), static_cast<int>(dag.size()));
    } else {
      CHECK_THROWS(run(), "enough");
      CHECK(num_asked.load() < static_cast<int>(dag.size()));
    }
    CHECK_EQ(num_over.load(), 1);
  }
}

TEST(a_run_whose_watch_is_over_ends_at_its_next_tile) {
  const Dag dag = stencil_dag(4, 30);
  const auto plan = recorded_plan(dag, 1);
  const VirtualGraph graph = virtual_graph(plan->graph());
  int64_t numbers[64];
  void* results[] = {numbers};
  const auto run = [&](const VirtualMachine& machine, const PlaceTile& place, int64_t nanoseconds) {
    Recording recording(dag);
    const void* operands[] = {&recording};
    Attendant attendant;
    attendant.attend = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    attendant.is_lost = [] { return false; };
    const auto watch = std::make_shared<Watch>(nanoseconds, nullptr);
    run_placed(plan, operands, results, graph, machine, plain(machine), kShallowFirst, place, attendant, watch);
  };
  const PlaceTile alternately = [](uint32_t tile, int64_t) { return static_cast<int>(tile % 2); };
  run(one_memory({2, 2}), {}, int64_t{1} << 60);
  CHECK_THROWS(run(one_memory({2, 2}), {}, 0), "longer than the limit of 0 nanoseconds");
  CHECK_THROWS(run(one_memory({2, 2}), alternately, 0), "longer than the limit of 0 nanoseconds");
}

TEST(who_comes_after_a_failure_throws_the_first_cause) {
  Turns turns;
  CHECK_EQ(turns.take([] { return 7; }), 7);
  CHECK_THROWS(turns.take([]() -> int { throw std::runtime_error("no idea"); }), "no idea");
  std::vector<std::thread> threads;
  std::atomic<int> num_asked{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { CHECK_THROWS(turns.take([&] { return ++num_asked; }), "no idea"); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(num_asked.load(), 0);
}

TEST(what_does_not_fit_is_refused) {
  const Dag dag = stencil_dag(2, 2);
  const auto plan = recorded_plan(dag, 1);
  const VirtualGraph graph = virtual_graph(plan->graph());
  Recording recording(dag);
  std::vector<int64_t> result;
  CHECK_THROWS(run_on(plan, &recording, result, VirtualGraph({}, {}, {}, {}), lanes(1), {}), "of another graph");
  CHECK_THROWS(run_on(plan, &recording, result, graph, three_memories(), {}), "with more than one memory a policy must say");
  CHECK_THROWS(run_placed(plan, {}, {}, graph, lanes(1), plain(lanes(1))), "of another graph");
  const void* operands[] = {&recording};
  void* results[] = {result.data()};
  CHECK_THROWS(run_placed(plan, operands, results, graph, lanes(1), {}), "0 kinds of lanes for 1 resources");
  CHECK_THROWS(run_placed(plan, operands, results, graph, lanes(1), std::vector<LaneKind>{{0, {}}}), "once is least");
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
