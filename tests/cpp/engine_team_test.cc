// Idle workers compute shares of a tile, each share once and task after task, and leave when other work comes.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "aspen_jax/engine/team.h"
#include "dag.h"

namespace aspen::testing {
namespace {

constexpr int kMostShares = 5;
constexpr int64_t kEndless = INT64_MAX;

void wait_until(const auto& is_so) {
  while (!is_so()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// What a tile is to do: tasks, each of which makes new values of those before. The values are plain memory, so ThreadSanitizer
// sees what is not handed over, and a share that is missing, or comes twice, gives wrong values.
struct Work {
  int64_t tasks;
  int64_t failing_task = -1;  // its last share
  size_t scratch = 100'000;
  std::atomic<bool> stops{false};
  std::atomic<int64_t> task{0};
  std::atomic<int64_t> by_others{0};  // shares
  std::atomic<bool> has_led{false};
  std::thread::id leader{};
  uint64_t values[2][64 * kMostShares] = {};
  int64_t ended = 0;
};

uint64_t next(uint64_t value, int64_t task) {
  return (value ^ static_cast<uint64_t>(task)) * 0xBF58476D1CE4E5B9u + (value >> 31);
}

// The values of a share come from those of the next share in the task before.
const char* run_share(void* context, int share, int num_shares, std::byte* scratch) noexcept {
  auto& work = *static_cast<Work*>(context);
  if (std::this_thread::get_id() != work.leader) ++work.by_others;
  const int64_t task = work.task.load(std::memory_order_relaxed);
  scratch[work.scratch - 1] = std::byte{1};
  const auto& before = work.values[task & 1];
  auto& now = work.values[1 - (task & 1)];
  for (int i = 64 * kMostShares * share / num_shares; i < 64 * kMostShares * (share + 1) / num_shares; ++i) {
    now[i] = next(before[(i + 64) % (64 * kMostShares)], task);
  }
  return task == work.failing_task && share == num_shares - 1 ? "a share failed" : nullptr;
}

const char* run_shared(const TileArgs& args) noexcept {
  auto& work = *static_cast<Work*>(const_cast<void*>(args.inputs[0]));
  work.leader = std::this_thread::get_id();
  std::vector<std::byte> scratch(work.scratch);
  Team* const team = args.team != nullptr && args.team->open(kMostShares, work.scratch) ? args.team : nullptr;
  if (team != nullptr) work.has_led = true;
  const char* error = nullptr;
  int64_t task = work.ended;  // before it paused
  for (; task < work.tasks && !work.stops.load() && error == nullptr; ++task) {
    if (const Beat beat = (*args.pulse)(); beat != Beat::kGoOn) {
      error = beat == Beat::kEnd ? "over" : args.pulse->paused;
      break;
    }
    work.task.store(task, std::memory_order_relaxed);
    const int shares = team == nullptr ? 1 : team->size();
    if (shares > 1) {
      error = team->run(run_share, &work, shares, scratch.data());
    } else {
      error = run_share(&work, 0, 1, scratch.data());
    }
  }
  if (team != nullptr) team->close();
  work.ended = task;
  return error;
}

PreparedOp prepare_shared(const OpSpec& spec) {
  PreparedOp op = prepare_task<run_shared>(spec);
  op.kept_bytes = sizeof(int64_t);
  op.may_not_end = true;
  return op;
}

constexpr Kernel kShared[] = {{"shared", prepare_shared}};

struct Run {
  explicit Run(int64_t tasks) : plan(make_plan(encode_dag(one_task(), "shared", kInPool), kShared)), work{tasks}, run(*plan) {
    for (int i = 0; i < 64 * kMostShares; ++i) work.values[0][i] = static_cast<uint64_t>(i);
  }
  static Dag one_task() {
    Dag dag;
    dag.add(0, {});
    return dag;
  }
  void submit() { run.submit(plan, &work, waiter.done()); }
  void end() {
    CHECK_EQ(waiter.errors().size(), 0u);
    std::vector<uint64_t> values(64 * kMostShares), after(64 * kMostShares);
    for (size_t i = 0; i < values.size(); ++i) values[i] = i;
    for (int64_t task = 0; task < work.ended; ++task) {
      for (size_t i = 0; i < values.size(); ++i) after[i] = next(values[(i + 64) % values.size()], task);
      values.swap(after);
    }
    for (size_t i = 0; i < values.size(); ++i) CHECK_EQ(work.values[work.ended & 1][i], values[i]);
  }

  std::shared_ptr<const Plan> plan;
  Work work;
  DagRun run;
  Waiter waiter;
};

TEST(each_share_is_computed_once_and_after_the_task_before) {
  for (const int workers : {1, 2, 3, 7}) {
    runtime().set_num_workers(workers);
    for (int i = 0; i < 20; ++i) {
      Run run(ASPEN_SMALL_TESTS ? 300 : 3'000);
      run.submit();
      run.end();
      CHECK_EQ(run.work.ended, run.work.tasks);
      CHECK(run.work.has_led.load());
      if (workers == 1) CHECK_EQ(run.work.by_others.load(), 0);
    }
  }
}

TEST(idle_workers_come) {
  for (const int workers : {2, 4}) {
    runtime().set_num_workers(workers);
    Run run(kEndless);
    run.submit();
    wait_until([&] { return run.work.by_others.load() > 1'000; });
    run.work.stops = true;
    run.end();
  }
}

TEST(who_helps_leaves_for_other_work_and_comes_back) {
  runtime().set_num_workers(2);
  Run run(kEndless);
  run.submit();
  const Dag dag = stencil_dag(10, 6);
  const auto others = recorded_plan(dag, kInPool);
  for (int i = 0; i < 20; ++i) {
    const int64_t before = run.work.by_others.load();
    wait_until([&] { return run.work.by_others.load() > before; });
    run_and_check(others, dag);
  }
  run.work.stops = true;
  run.end();
}

TEST(one_tile_leads_and_others_work_alone) {
  for (const int workers : {2, 3, 4}) {
    runtime().set_num_workers(workers);
    for (int i = 0; i < 10; ++i) {
      std::vector<std::unique_ptr<Run>> runs;
      for (int k = 0; k < 3; ++k) {
        runs.push_back(std::make_unique<Run>(500 + 100 * k));
        runs.back()->submit();
      }
      for (const auto& run : runs) run->end();
    }
  }
}

TEST(a_share_that_fails_fails_the_run) {
  runtime().set_num_workers(3);
  for (int i = 0; i < 20; ++i) {
    Run run(1'000);
    run.work.failing_task = 10 * i;
    run.submit();
    const auto errors = run.waiter.errors();
    CHECK_EQ(errors.size(), 1u);
    CHECK(errors[0].find("a share failed") != std::string::npos);
    CHECK_EQ(run.work.ended, run.work.failing_task + 1);
  }
}

TEST(workers_come_and_go_while_others_help) {
  runtime().set_num_workers(4);
  Run run(kEndless);
  run.submit();
  for (const int workers : {1, 3, 2, 4, 1, 4}) {
    runtime().set_num_workers(workers);
    wait_until([&] { return threads_named("aspen-") == workers; });
    const int64_t before = run.work.by_others.load();
    if (workers > 1) wait_until([&] { return run.work.by_others.load() > before; });
  }
  run.work.stops = true;
  run.end();
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
