// Tiles that take long pause where others wait, and go on where they were.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "aspen_jax/engine/limits.h"
#include "dag.h"

namespace aspen::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

// What a run is to do, and what became of it. Task 0 counts until it has had all turns, or is told to stop.
struct Counting {
  int64_t turns;
  bool fails = false;  // in task 1, after task 0 has paused
  std::atomic<bool> stops{false};
  std::atomic<int64_t> turn{0}, pauses{0};
  int64_t ended = 0, sum = 0;  // of task 0

  void check() const { CHECK_EQ(sum, ended * (ended - 1) / 2); }
};
constexpr int64_t kEndless = INT64_MAX;

void wait_until(const auto& is_so) {
  while (!is_so()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

const char* run_counting(const TileArgs& args) noexcept {
  auto& counting = *static_cast<Counting*>(const_cast<void*>(args.inputs[0]));
  if (static_cast<const FirstTask*>(args.state)->task != 0) {
    if (!counting.fails) return nullptr;
    wait_until([&] { return counting.pauses.load() > 0; });
    return "no";
  }
  auto* const kept = reinterpret_cast<int64_t*>(args.kept);
  CHECK_EQ(reinterpret_cast<uintptr_t>(kept) % 64, 0u);
  int64_t turn = std::exchange(kept[0], 0);
  if (turn == 0) kept[1] = 0;
  for (; turn < counting.turns && !counting.stops.load(); ++turn) {
    const Beat beat = (*args.pulse)();
    if (beat == Beat::kEnd) return "over";
    if (beat == Beat::kPause) {
      kept[0] = turn;
      ++counting.pauses;
      return args.pulse->paused;
    }
    kept[1] += turn;
    counting.turn.store(turn + 1);
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(2);
         std::chrono::steady_clock::now() < end;) {
    }
  }
  counting.ended = turn;
  counting.sum = kept[1];
  return nullptr;
}

PreparedOp prepare_counting(const OpSpec& spec) {
  PreparedOp op = prepare_task<run_counting>(spec);
  op.kept_bytes = 2 * sizeof(int64_t);
  op.may_not_end = true;
  return op;
}

constexpr Kernel kCounting[] = {{"counting", prepare_counting}};

std::shared_ptr<const Plan> counting_plan(bool has_second_task = false) {
  Dag dag;
  dag.add(0, {});
  if (has_second_task) dag.add(1, {});
  return make_plan(encode_dag(dag, "counting", kInline), kCounting);
}

struct Run {
  explicit Run(std::shared_ptr<const Plan> its_plan, int64_t turns) : plan(std::move(its_plan)), counting{turns}, run(*plan) {}
  void submit(std::optional<int64_t> key = std::nullopt) { run.submit(plan, &counting, waiter.done(), nullptr, key); }
  void end() {
    CHECK_EQ(waiter.errors().size(), 0u);
    counting.check();
  }

  std::shared_ptr<const Plan> plan;
  Counting counting;
  DagRun run;
  Waiter waiter;
};

TEST(a_tile_that_never_ends_starves_no_other_run) {
  const auto plan = counting_plan();
  const Dag dag = stencil_dag(10, 6);
  const auto others = recorded_plan(dag, kInPool);
  for (const int workers : {1, 2, 3}) {
    runtime().set_num_workers(workers);
    std::vector<std::unique_ptr<Run>> endless;
    for (int i = 0; i < 3; ++i) {
      endless.push_back(std::make_unique<Run>(plan, kEndless));
      endless.back()->submit();
    }
    for (int i = 0; i < 20; ++i) run_and_check(others, dag);
    Run finite(plan, 2'000);
    finite.submit();
    finite.end();
    CHECK_EQ(finite.counting.ended, 2'000);
    for (const auto& run : endless) {  // nor do they starve each other
      const int64_t before = run->counting.turn.load();
      wait_until([&] { return run->counting.turn.load() > before; });
    }
    for (const auto& run : endless) run->counting.stops = true;
    for (const auto& run : endless) run->end();
    if (workers == 1) CHECK(endless[0]->counting.pauses.load() > 0);
  }
}

TEST(a_run_that_goes_first_does_not_wait_for_a_turn) {
  runtime().set_num_workers(1);
  Run endless(counting_plan(), kEndless), urgent(counting_plan(), 100);
  endless.submit();
  wait_until([&] { return endless.counting.turn.load() > 0; });
  urgent.submit(-1'000'000 * kMs);
  urgent.end();
  CHECK_EQ(urgent.counting.pauses.load(), 0);
  CHECK(endless.counting.pauses.load() > 0);
  endless.counting.stops = true;
  endless.end();
}

TEST(nobody_pauses_where_nobody_waits) {
  runtime().set_num_workers(2);
  Run alone(counting_plan(), 2'000);
  alone.submit();
  alone.end();
  CHECK_EQ(alone.counting.pauses.load(), 0);
}

TEST(workers_that_leave_hand_on_what_they_were_in) {
  runtime().set_num_workers(4);
  std::vector<std::unique_ptr<Run>> runs;
  for (int i = 0; i < 4; ++i) {
    runs.push_back(std::make_unique<Run>(counting_plan(), kEndless));
    runs.back()->submit();
  }
  for (const auto& run : runs) wait_until([&] { return run->counting.turn.load() > 0; });
  for (const int workers : {1, 3, 1}) {
    runtime().set_num_workers(workers);
    wait_until([&] { return threads_named("aspen-") == workers; });
    for (const auto& run : runs) {
      const int64_t before = run->counting.turn.load();
      wait_until([&] { return run->counting.turn.load() > before; });
    }
  }
  for (const auto& run : runs) run->counting.stops = true;
  for (const auto& run : runs) run->end();
}

TEST(a_run_that_failed_while_its_tile_had_paused_leaves_nothing_to_the_next) {
  runtime().set_num_workers(2);
  const auto plan = counting_plan(true);
  for (int i = 0; i < 30; ++i) {
    Run failing(plan, kEndless), other(counting_plan(), kEndless);
    failing.counting.fails = true;
    failing.submit();
    other.submit();
    CHECK_EQ(failing.waiter.errors().size(), 1u);
    other.counting.stops = true;
    other.end();
    Run again(plan, 50);
    again.submit();
    again.end();
    CHECK_EQ(again.counting.ended, 50);
  }
}

TEST(a_limit_of_time_ends_a_tile_at_its_next_question) {
  for (const int workers : {1, 2}) {
    runtime().set_num_workers(workers);
    Run endless(counting_plan(), kEndless);
    const void* operands[] = {&endless.counting};
    void* results[] = {endless.run.result.data()};
    runtime().submit(endless.plan, operands, results, endless.waiter.done(), nullptr, std::nullopt, nullptr,
                     std::make_shared<Watch>(20 * kMs, nullptr));
    const auto errors = endless.waiter.errors();
    CHECK_EQ(errors.size(), 1u);
    CHECK(errors[0].find("longer than the limit") != std::string::npos);
  }
}

TEST(an_op_whose_tile_pauses_has_one) {
  Dag dag;
  dag.add(0, {});
  dag.add(0, {});
  CHECK_THROWS(make_plan(encode_dag(dag, "counting", kInline), kCounting), "has several tiles");
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
