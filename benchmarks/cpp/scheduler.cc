// What scheduling costs: nanoseconds a tile for graphs of empty tiles, and the shortest tile that is worth scheduling.
//
//   scheduler [max workers] [repeats]
//
// Beside the engine: Algorithm 1 in a plain loop, and oneTBB's flow graph where it is installed. "inline" is the path of small
// runs, walked on the caller's thread without atomics. Everything that is compared is measured in turn, repeat after repeat, so
// that a noisy moment hits all alike.
//
// METG(50%) is the minimum effective task granularity of Task Bench (Slaughter et al., SC'20): of graphs of equal tiles that
// compute for a while, the shortest time a tile (wall time x workers / tiles) at which half of the peak rate is reached, the peak
// being the highest rate of any system with so many workers.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "plain_loop.h"
#include "tests/cpp/dag.h"
#ifdef ASPEN_HAS_TBB
#include "tbb_flow_graph.h"
#endif

namespace aspen {
namespace {

using testing::Dag;
using testing::Recording;

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* run_nothing(const TileArgs&) noexcept { return nullptr; }

// A chain of multiply-adds, which no processor can shorten; their number is the operand. Never false, which no compiler knows.
bool compute(const void* iterations) noexcept {
  const int64_t count = *static_cast<const int64_t*>(iterations);
  auto x = static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) x = x * 0.999 + 0.001;
  return x >= 0;
}

const char* run_compute(const TileArgs& args) noexcept {
  return compute(args.inputs[0]) ? nullptr : "computed a negative number";
}

Dag chain_dag(int tasks) {
  Dag dag;
  for (int i = 0; i < tasks; ++i) dag.add(i, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  return dag;
}

Dag tree_dag(int levels) {
  Dag dag;
  dag.add(0, {});
  for (int level = 1; level < levels; ++level) {
    const int first = static_cast<int>(dag.size()) - (1 << (level - 1));
    for (int i = 0; i < 1 << level; ++i) dag.add(level, {first + i / 2});
  }
  return dag;
}

std::shared_ptr<const Plan> plan_of(const Dag& dag, int64_t tile_cost) {
  static constexpr Kernel kEmpty[] = {{"empty", testing::prepare_task<run_nothing>}};
  return testing::make_plan(testing::encode_dag(dag, "empty", tile_cost), kEmpty);
}

struct System {
  std::string name;
  std::function<void()> run;
  std::vector<double> times = {};

  void time() {
    const double begin = seconds_now();
    run();
    times.push_back(seconds_now() - begin);
  }
};

void measure_in_turns(std::vector<System>& systems, int repeats) {
  for (System& system : systems) system.run();  // starts the threads
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (System& system : systems) system.time();
  }
  for (System& system : systems) std::sort(system.times.begin(), system.times.end());
}

void submit_and_wait(const std::shared_ptr<const Plan>& plan, const void* context) {
  testing::Waiter waiter;
  testing::DagRun run(*plan);
  run.submit(plan, context, waiter.done());
  waiter.wait();
}

std::string count_of(int count, const char* what) { return std::to_string(count) + " " + what; }

System ours(const std::shared_ptr<const Plan>& plan, int workers, const void* context, const char* variant = "",
            const Policy& policy = kShallowFirst) {
  return {count_of(workers, "workers") + variant, [=, &policy] {
            runtime().set_num_workers(workers);
            runtime().set_policy(policy);
            submit_and_wait(plan, context);
          }};
}

#ifdef ASPEN_HAS_TBB
using TbbTask = void (*)(void*, size_t);

System tbb_system(const Dag& dag, int threads, TbbTask task, void* context) {
  const auto graph = std::make_shared<TbbFlowGraph>(dag, threads, task, context);
  return {"oneTBB, " + count_of(threads, "threads"), [=] { graph->run(); }};
}

void check_tbb(const Dag& dag, int threads) {
  Recording recording(dag);
  TbbFlowGraph(
      dag, threads, [](void* context, size_t task) { static_cast<Recording*>(context)->execute(task); }, &recording)
      .run();
  recording.check();
}
#endif

const Policy kAllThroughSingleQueue = {kSingleQueue.column, kSingleQueue.victim, nullptr, 0, true};

void measure(const std::string& name, const Dag& dag, int max_workers, int repeats) {
  const auto pooled = plan_of(dag, testing::kInPool), alone = plan_of(dag, testing::kInline);
  const auto loop = std::make_shared<PlainLoop>(*pooled);
  runtime().set_num_workers(max_workers);
  testing::run_and_check(testing::recorded_plan(dag, testing::kInPool), dag);
  if (loop->run() != dag.size()) std::abort();

  std::vector<System> systems = {{"plain loop", [=] { loop->run(); }}, {"inline", [=] { submit_and_wait(alone, nullptr); }}};
  for (int workers = 1; workers <= max_workers; ++workers) {
    systems.push_back(ours(pooled, workers, nullptr));
    systems.push_back(ours(pooled, workers, nullptr, ", no child kept", kAllThroughPool));
    systems.push_back(ours(pooled, workers, nullptr, ", child cache of 4", kChildCacheOf4));
    systems.push_back(ours(pooled, workers, nullptr, ", child cache of 16", kChildCacheOf16));
    systems.push_back(ours(pooled, workers, nullptr, ", single queue", kSingleQueue));
    systems.push_back(ours(pooled, workers, nullptr, ", no child kept, single queue", kAllThroughSingleQueue));
    systems.push_back(ours(pooled, workers, nullptr, ", no priorities", kFirstReadyFirst));
#ifdef ASPEN_HAS_TBB
    check_tbb(dag, workers);
    systems.push_back(tbb_system(dag, workers, [](void*, size_t) {}, nullptr));
#endif
  }
  measure_in_turns(systems, repeats);
  std::printf("%s: %zu tiles, %zu edges\n", name.c_str(), dag.size(), pooled->graph().children.size());
  const double tile_ns = 1e9 / static_cast<double>(dag.size());
  for (const System& system : systems) {
    std::printf("  %-26s min %7.1f  median %7.1f ns a tile\n", system.name.c_str(), system.times.front() * tile_ns,
                system.times[system.times.size() / 2] * tile_ns);
  }
}

struct Grain {
  double ns;          // wall time x workers / tiles
  double rate;        // iterations a second
  double efficiency;  // of the peak rate
};

// Where a curve, from the longest tiles to ever shorter ones, falls below one half: between two measured points, in logarithms.
double metg(const std::vector<Grain>& curve) {
  for (size_t i = curve.size(); i-- > 0;) {
    if (curve[i].efficiency >= 0.5) continue;
    if (i + 1 == curve.size()) return std::nan("");
    const Grain &below = curve[i], &above = curve[i + 1];
    const double part = (0.5 - below.efficiency) / (above.efficiency - below.efficiency);
    return below.ns * std::pow(above.ns / below.ns, part);
  }
  return curve.front().ns;
}

void measure_metg(const Dag& dag, int max_workers, int repeats) {
  static constexpr Kernel kCompute[] = {{"compute", testing::prepare_task<run_compute>}};
  const auto plan = testing::make_plan(testing::encode_dag(dag, "compute", testing::kInPool), kCompute);
  std::printf("grain: tiles of the stencil that compute\n");
  for (int workers = 1; workers <= max_workers; ++workers) {
    int64_t iterations = 1;
    std::vector<System> systems = {ours(plan, workers, &iterations)};
#ifdef ASPEN_HAS_TBB
    const TbbTask task = [](void* context, size_t) {
      if (!compute(context)) std::abort();
    };
    systems.push_back(tbb_system(dag, workers, task, &iterations));
#endif
    std::vector<std::vector<Grain>> curves(systems.size());
    double peak = 0;
    for (iterations = 1; iterations <= 4096; iterations *= 2) {
      measure_in_turns(systems, repeats);
      for (size_t i = 0; i < systems.size(); ++i) {
        const double seconds = systems[i].times.front(), tiles = static_cast<double>(dag.size());
        curves[i].push_back({seconds * workers / tiles * 1e9, static_cast<double>(iterations) * tiles / seconds, 0});
        peak = std::max(peak, curves[i].back().rate);
        systems[i].times.clear();
      }
    }
    for (size_t i = 0; i < systems.size(); ++i) {
      for (Grain& grain : curves[i]) {
        grain.efficiency = grain.rate / peak;
        std::printf("  %-26s %9.1f ns a tile  efficiency %.3f\n", systems[i].name.c_str(), grain.ns, grain.efficiency);
      }
      std::printf("  %-26s METG(50%%) %.1f ns\n", systems[i].name.c_str(), metg(curves[i]));
    }
  }
}

}  // namespace
}  // namespace aspen

int main(int argc, char** argv) {
  const int max_workers = argc > 1 ? std::atoi(argv[1]) : 2;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 51;
  if (max_workers < 1 || repeats < 1) {
    std::fprintf(stderr, "usage: scheduler [max workers, at least 1] [repeats, at least 1]\n");
    return 2;
  }
  std::mt19937_64 random(1);
  const aspen::testing::Dag stencil = aspen::testing::stencil_dag(64, 128);
  aspen::measure("64x128 three-point stencil", stencil, max_workers, repeats);
  aspen::measure("chain", aspen::chain_dag(8192), max_workers, repeats);
  aspen::measure("binary tree", aspen::tree_dag(13), max_workers, repeats);
  aspen::measure("random", aspen::testing::random_dag(random, 128, 127, 5), max_workers, repeats);
  aspen::measure_metg(stencil, max_workers, std::max(1, repeats / 5));
#ifndef ASPEN_HAS_TBB
  std::printf("oneTBB: absent; install its development files (Debian: libtbb-dev) and build again\n");
#endif
}
