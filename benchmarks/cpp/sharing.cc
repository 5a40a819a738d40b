// Graphs of empty tiles for sharing.py, which runs this program under valgrind and looks at which thread touches which memory.
//
//   sharing [repeats]
//
// A line on the standard error names each graph and the marker, which is then stored to where the runs to look at begin and end.
// valgrind runs one thread at a time and lets the next one in at a system call, so each tile makes one.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/cpp/dag.h"

namespace aspen {
namespace {

constexpr int kWorkers = 2;
constexpr int kWarmUps = 3;

volatile int marker = 0;

const char* run_yield(const TileArgs&) noexcept {
  sched_yield();
  return nullptr;
}

void run_between_markers(const char* name, const testing::Dag& dag, int repeats) {
  testing::run_and_check(testing::recorded_plan(dag, testing::kInPool), dag);
  static constexpr Kernel kYield[] = {{"yield", testing::prepare_task<run_yield>}};
  const auto plan = testing::make_plan(testing::encode_dag(dag, "yield", testing::kInPool), kYield);
  testing::DagRun run(*plan);
  const auto run_often = [&](int times) {
    for (int i = 0; i < times; ++i) {
      testing::Waiter waiter;
      run.submit(plan, nullptr, waiter.done());
      waiter.wait();
    }
  };
  run_often(kWarmUps);
  std::fprintf(stderr, "graph %s, %zu tiles, %d runs, marker %p\n", name, dag.size(), repeats,
               static_cast<const void*>(const_cast<const int*>(&marker)));
  marker = 1;
  run_often(repeats);
  marker = 0;
}

}  // namespace
}  // namespace aspen

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 8;
  if (repeats < 1) {
    std::fprintf(stderr, "usage: sharing [repeats, at least 1]\n");
    return 2;
  }
  aspen::runtime().set_num_workers(aspen::kWorkers);
  std::mt19937_64 random(1);
  aspen::run_between_markers("stencil", aspen::testing::stencil_dag(16, 32), repeats);
  aspen::run_between_markers("random", aspen::testing::random_dag(random, 16, 63, 5), repeats);
}
