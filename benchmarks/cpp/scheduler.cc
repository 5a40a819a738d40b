// What scheduling costs: nanoseconds a tile for graphs of empty tiles, beside Algorithm 1 in a plain loop.
//
//   scheduler [max workers] [repeats]
//
// "inline" is the path of small runs, walked on the caller's thread without atomics. All variants of a graph are measured in
// turn, repeat after repeat, so that a noisy moment hits them alike.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/dag.h"

namespace aspen {
namespace {

using testing::Dag;

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* run_nothing(const TileArgs&) noexcept { return nullptr; }

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

// Algorithm 1 with nothing around it: counters, a stack of ready tiles, a call through a pointer.
class PlainLoop {
 public:
  explicit PlainLoop(const Plan& plan) : plan_(plan), left_(plan.num_tiles()) {}

  size_t run() {
    const Graph& graph = plan_.graph();
    std::copy(graph.parents.begin(), graph.parents.end(), left_.begin());
    ready_.assign(plan_.roots().begin(), plan_.roots().end());
    size_t executed = 0;
    while (!ready_.empty()) {
      int32_t tile = ready_.back();
      ready_.pop_back();
      while (tile >= 0) {
        const PreparedOp& op = plan_.prepared()[graph.tile_ops[tile]];
        op.run({op.state.get(), nullptr, nullptr, plan_.tiles()[tile].box, nullptr, nullptr});
        ++executed;
        int32_t kept = -1;
        for (const int32_t child : graph.children_of(tile)) {
          if (--left_[child] != 0) continue;
          if (kept < 0) {
            kept = child;
          } else {
            ready_.push_back(child);
          }
        }
        tile = kept;
      }
    }
    return executed;
  }

 private:
  const Plan& plan_;
  std::vector<uint32_t> left_;
  std::vector<int32_t> ready_;
};

struct Variant {
  std::string name;
  std::vector<double> times;
};

void measure(const std::string& name, const Dag& dag, int max_workers, int repeats) {
  static constexpr Kernel kEmpty[] = {{"empty", testing::prepare_task<run_nothing>}};
  const auto pooled = testing::make_plan(testing::encode_dag(dag, "empty", testing::kInPool), kEmpty);
  const auto alone = testing::make_plan(testing::encode_dag(dag, "empty", testing::kInline), kEmpty);
  PlainLoop loop(*pooled);
  testing::run_and_check(testing::recorded_plan(dag, testing::kInPool), dag);
  if (loop.run() != dag.size()) std::abort();

  std::vector<Variant> variants = {{"plain loop", {}}, {"inline", {}}};
  for (int workers = 1; workers <= max_workers; ++workers) variants.push_back({std::to_string(workers) + " workers", {}});
  const auto time_run = [&](const std::shared_ptr<const Plan>& plan) {
    testing::Waiter waiter;
    testing::DagRun run(*plan);
    const double begin = seconds_now();
    run.submit(plan, nullptr, waiter.done());
    waiter.wait();
    return seconds_now() - begin;
  };
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double begin = seconds_now();
    loop.run();
    variants[0].times.push_back(seconds_now() - begin);
    variants[1].times.push_back(time_run(alone));
    for (int workers = 1; workers <= max_workers; ++workers) {
      runtime().set_num_workers(workers);
      if (repeat == 0) time_run(pooled);  // starts the threads
      variants[static_cast<size_t>(workers) + 1].times.push_back(time_run(pooled));
    }
  }
  std::printf("%s: %zu tiles, %zu edges\n", name.c_str(), dag.size(), pooled->graph().children.size());
  for (Variant& variant : variants) {
    std::sort(variant.times.begin(), variant.times.end());
    const double tile_ns = 1e9 / static_cast<double>(dag.size());
    std::printf("  %-12s min %7.1f  median %7.1f ns a tile\n", variant.name.c_str(), variant.times.front() * tile_ns,
                variant.times[variant.times.size() / 2] * tile_ns);
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
  aspen::measure("64x128 three-point stencil", aspen::testing::stencil_dag(64, 128), max_workers, repeats);
  aspen::measure("chain", aspen::chain_dag(8192), max_workers, repeats);
  aspen::measure("binary tree", aspen::tree_dag(13), max_workers, repeats);
  aspen::measure("random", aspen::testing::random_dag(random, 128, 127, 5), max_workers, repeats);
}
