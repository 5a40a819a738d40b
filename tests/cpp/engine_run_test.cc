// Runs: every tile once and after its parents, whatever the workers, the runs in flight, and the tiles that fail.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dag.h"
#include "virtual_graph.h"

// Sanitizers end a process that asks for too much memory; here it must be told, as without them.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace aspen::testing {
namespace {

constexpr int kScale = ASPEN_SMALL_TESTS ? 1 : 10;

std::string text_of(const std::vector<std::string>& errors) {
  std::string text;
  for (const auto& error : errors) text += error + "\n";
  return text;
}

TEST(millions_of_tiles_of_random_graphs_run_once_and_after_their_parents) {
  std::mt19937_64 random(1);
  size_t tiles = 0;
  for (const int workers : {1, 2, 3, 5, 8, 16}) {
    runtime().set_num_workers(workers);
    CHECK_EQ(runtime().num_workers(), workers);
    for (int i = 0; i < 4 * kScale; ++i) {
      const Dag dag = random_dag(random, 1 + static_cast<int>(random() % 60), 1 + static_cast<int>(random() % 120), 5);
      const auto plan = recorded_plan(dag, i % 8 == 7 ? kInline : kInPool);
      for (int repeat = 0; repeat < 6; ++repeat) {
        run_and_check(plan, dag);
        tiles += dag.size();
      }
    }
  }
  std::printf("  %zu tiles\n", tiles);
}

TEST(shapes_of_graphs_at_their_extremes) {
  runtime().set_num_workers(4);
  Dag single, chain, independent, fan;
  single.add(0, {});
  for (int i = 0; i < 3000; ++i) chain.add(i, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  for (int i = 0; i < 20000; ++i) independent.add(0, {});
  // One tile that makes thousands ready at once, and one that waits for all of them.
  fan.add(0, {});
  for (int i = 0; i < 20000; ++i) fan.add(1, {0});
  std::vector<int32_t> all;
  for (int i = 1; i <= 20000; ++i) all.push_back(i);
  fan.add(2, all);
  for (const Dag& dag : {single, chain, independent, fan, stencil_dag(200, 60)}) {
    for (const int64_t cost : {kInline, kInPool}) {
      const auto plan = recorded_plan(dag, cost);
      for (int repeat = 0; repeat < 3; ++repeat) run_and_check(plan, dag);
    }
  }
}

TEST(many_runs_from_many_threads_are_in_flight_at_once) {
  runtime().set_num_workers(3);
  std::mt19937_64 random(2);
  std::vector<Dag> dags;
  std::vector<std::shared_ptr<const Plan>> plans;
  for (int i = 0; i < 6; ++i) {
    dags.push_back(random_dag(random, 30, 40, 4));
    plans.push_back(recorded_plan(dags.back(), i == 5 ? kInline : kInPool));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 mine(static_cast<uint64_t>(t));
      for (int round = 0; round < 3 * kScale; ++round) {
        // Several at once from this thread, of the same and of other plans; more than a plan keeps states for.
        Waiter waiter;
        std::vector<size_t> chosen;
        std::vector<std::unique_ptr<Recording>> recordings;
        std::vector<std::unique_ptr<DagRun>> runs;
        for (int i = 0; i < 8; ++i) {
          chosen.push_back(mine() % plans.size());
          recordings.push_back(std::make_unique<Recording>(dags[chosen.back()]));
          runs.push_back(std::make_unique<DagRun>(*plans[chosen.back()]));
          runs.back()->submit(plans[chosen.back()], recordings.back().get(), waiter.done());
        }
        CHECK_EQ(text_of(waiter.errors()), "");
        for (const auto& recording : recordings) recording->check();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(the_number_of_workers_changes_while_runs_are_in_flight) {
  std::mt19937_64 random(3);
  const Dag dag = random_dag(random, 60, 60, 4);
  const auto plan = recorded_plan(dag, kInPool);
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    std::mt19937_64 mine(4);
    while (!stop.load()) {
      runtime().set_num_workers(1 + static_cast<int>(mine() % 16));
      std::this_thread::sleep_for(std::chrono::microseconds(mine() % 300));
    }
  });
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 15 * kScale; ++i) run_and_check(plan, dag);
    });
  }
  for (auto& caller : callers) caller.join();
  stop.store(true);
  changer.join();
  runtime().set_num_workers(2);
  CHECK_EQ(runtime().num_workers(), 2);
}

TEST(a_run_may_be_submitted_and_workers_changed_from_a_done_callback) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(10, 10);
  const auto plan = recorded_plan(dag, kInPool);
  struct Chain {
    std::shared_ptr<const Plan> plan;
    const Dag& dag;
    Recording recording{dag};
    DagRun run{*plan};
    Done last;
    int left = 50;

    void go() {
      recording.~Recording();
      new (&recording) Recording(dag);
      run.submit(plan, &recording, [this](const std::string& error) {
        CHECK_EQ(error, "");
        recording.check();
        runtime().set_num_workers(1 + left % 4);
        if (--left == 0) {
          last({});
        } else {
          go();
        }
      });
    }
  };
  Waiter waiter;
  Chain chain{.plan = plan, .dag = dag, .last = waiter.done()};
  chain.go();
  CHECK_EQ(text_of(waiter.errors()), "");
}

// A task of this kernel fails if its number is the one that the context says.
struct FailAt {
  explicit FailAt(const Dag& dag) : recording(dag) {}
  Recording recording;
  std::vector<size_t> tasks;
};

const char* run_or_fail(const TileArgs& args) noexcept {
  auto& context = *static_cast<FailAt*>(const_cast<void*>(args.inputs[0]));
  const auto task = static_cast<size_t>(static_cast<const FirstTask*>(args.state)->task + args.lo[0]);
  context.recording.execute(task);
  const bool fails = std::find(context.tasks.begin(), context.tasks.end(), task) != context.tasks.end();
  return fails ? "this tile does not like its input" : nullptr;
}

TEST(a_tile_that_fails_ends_its_run_and_no_other) {
  static constexpr Kernel kKernels[] = {{"may fail", prepare_task<run_or_fail>}};
  std::mt19937_64 random(5);
  for (const int workers : {1, 4}) {
    runtime().set_num_workers(workers);
    for (int i = 0; i < 5 * kScale; ++i) {
      const Dag dag = random_dag(random, 20, 30, 4);
      const auto plan = make_plan(encode_dag(dag, "may fail", i % 4 == 0 ? kInline : kInPool), kKernels);
      const Dag good_dag = stencil_dag(20, 30);
      const auto good_plan = recorded_plan(good_dag, kInPool);
      FailAt context(dag), healthy(dag);
      const size_t bad = random() % dag.size();
      context.tasks = {bad};
      Recording good(good_dag);
      DagRun bad_run(*plan), good_run(*good_plan), healthy_run(*plan);
      Waiter bad_waiter, waiter;
      good_run.submit(good_plan, &good, waiter.done());
      bad_run.submit(plan, &context, bad_waiter.done());
      healthy_run.submit(plan, &healthy, waiter.done());
      CHECK_EQ(text_of(waiter.errors()), "");
      good.check();
      healthy.recording.check();
      const std::string layer = std::to_string(dag.layer[bad]);
      const auto errors = bad_waiter.errors();
      CHECK_EQ(errors.size(), 1u);
      CHECK_EQ(errors[0], plan->describe_tile(bad) + " failed: this tile does not like its input");
      CHECK(errors[0].find("tile " + std::to_string(bad) + " [") == 0);
      CHECK(errors[0].find("] of op 'layer" + layer + "'") != std::string::npos);
      // The state of a failed run is as good as new.
      FailAt again(dag);
      DagRun next(*plan);
      Waiter next_waiter;
      next.submit(plan, &again, next_waiter.done());
      CHECK_EQ(text_of(next_waiter.errors()), "");
      again.recording.check();
    }
  }
}

TEST(after_a_failure_the_rest_is_not_executed) {
  static constexpr Kernel kKernels[] = {{"may fail", prepare_task<run_or_fail>}};
  runtime().set_num_workers(1);
  Dag chain;
  for (int i = 0; i < 100; ++i) chain.add(i, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  for (const int64_t cost : {kInline, kInPool}) {
    const auto plan = make_plan(encode_dag(chain, "may fail", cost), kKernels);
    FailAt context(chain);
    context.tasks = {30, 40};
    DagRun run(*plan);
    Waiter waiter;
    run.submit(plan, &context, waiter.done());
    const auto errors = waiter.errors();
    CHECK_EQ(errors.size(), 1u);
    CHECK_EQ(errors[0], "tile 30 [0:1] of op 'layer30' failed: this tile does not like its input");
    CHECK_EQ(context.recording.num_run(), 31u);
  }
}

TEST(a_run_whose_watch_is_over_ends_at_its_next_tile) {
  runtime().set_num_workers(4);
  const Dag dag = stencil_dag(20, 40);
  for (const int64_t cost : {kInline, kInPool}) {
    const auto plan = recorded_plan(dag, cost);
    const auto run = [&](const std::shared_ptr<Watch>& watch, bool looks, size_t& num_run) {
      Recording recording(dag);
      DagRun buffers(*plan);
      const void* operands[] = {&recording};
      void* results[] = {buffers.result.data()};
      Waiter waiter;
      runtime().submit(plan, operands, results, waiter.done(), nullptr, std::nullopt, nullptr, watch);
      if (looks) watch->look();  // while workers walk
      const std::string text = text_of(waiter.errors());
      num_run = recording.num_run();
      return text;
    };
    size_t num_run = 0;
    CHECK(run(std::make_shared<Watch>(0, nullptr), false, num_run).find("longer than the limit of 0 nanoseconds") !=
          std::string::npos);
    CHECK_EQ(num_run, 0u);
    const auto interrupted = std::make_shared<Watch>(Limits::kNone, [] { return true; });
    interrupted->look();
    CHECK_EQ(run(interrupted, false, num_run), "the run was interrupted\n");
    CHECK_EQ(num_run, 0u);
    CHECK_EQ(run(std::make_shared<Watch>(Limits::kNone, [] { return false; }), true, num_run), "");
    CHECK_EQ(num_run, dag.size());
    for (int i = 0; i < 20; ++i) {
      const std::string text = run(std::make_shared<Watch>(Limits::kNone, [] { return true; }), true, num_run);
      CHECK(text == "the run was interrupted\n" || (text.empty() && num_run == dag.size()));
    }
    run_and_check(plan, dag);
  }
}

TEST(two_failures_give_one_error) {
  static constexpr Kernel kKernels[] = {{"may fail", prepare_task<run_or_fail>}};
  runtime().set_num_workers(4);
  Dag dag;
  for (int i = 0; i < 200; ++i) dag.add(0, {});
  const auto plan = make_plan(encode_dag(dag, "may fail", kInPool), kKernels);
  for (int i = 0; i < 20 * kScale; ++i) {
    FailAt context(dag);
    for (size_t task = 0; task < dag.size(); task += 3) context.tasks.push_back(task);
    DagRun run(*plan);
    Waiter waiter;
    run.submit(plan, &context, waiter.done());
    CHECK_EQ(waiter.errors().size(), 1u);
  }
}

TEST(a_small_run_is_finished_when_submit_returns) {
  const Dag dag = stencil_dag(5, 5);
  const auto plan = recorded_plan(dag, kInline);
  Recording recording(dag);
  DagRun run(*plan);
  std::thread::id thread;
  run.submit(plan, &recording, [&](const std::string& error) {
    CHECK_EQ(error, "");
    thread = std::this_thread::get_id();
  });
  CHECK(thread == std::this_thread::get_id());
  recording.check();
}

TEST(a_plan_without_tiles_is_done_at_once) {
  GraphBuilder builder;
  const int64_t in = builder.operand(DType::kF32, {0, 3});
  builder.op("nothing", "recorded", {builder.whole(in)}, builder.result(DType::kI64, {0}), {0});
  static constexpr Kernel kKernels[] = {{"recorded", prepare_task<run_recorded>}};
  const auto plan = make_plan(builder.encode(), kKernels);
  Waiter waiter;
  DagRun run(*plan);
  run.submit(plan, nullptr, waiter.done());
  CHECK_EQ(text_of(waiter.errors()), "");
}

TEST(calls_that_do_not_fit_the_graph_are_errors) {
  const Dag dag = stencil_dag(2, 2);
  const auto plan = recorded_plan(dag, kInPool);
  Waiter waiter;
  runtime().submit(plan, {}, {}, waiter.done());
  CHECK_EQ(text_of(waiter.errors()), "the graph has 1 operands and 1 results, the call has 0 and 0\n");
}

TEST(running_out_of_memory_is_an_error_and_other_runs_go_on) {
  static constexpr Kernel kKernels[] = {{"recorded", prepare_task<run_recorded>},
                                        {"any", [](const OpSpec&) { return PreparedOp{nullptr, run_recorded}; }}};
  const Dag dag = stencil_dag(3, 3);
  Recording recording(dag);
  {
    GraphBuilder builder;
    const int64_t in = builder.operand(DType::kU8, {1});
    builder.tile(builder.op("op", "recorded", {builder.whole(in)}, builder.result(DType::kI64, {1}), {0}), {0}, {1}, kInPool);
    const int64_t large = builder.workspace(DType::kI16, {1 << 30, 1 << 30});
    builder.tile(builder.op("large", "any", {builder.whole(in)}, large), {0, 0}, {1 << 30, 1 << 30}, kInPool);
    const auto plan = make_plan(builder.encode(), kKernels);
    Waiter waiter;
    DagRun run(*plan);
    run.submit(plan, &recording, waiter.done());
    const auto errors = waiter.errors();
    CHECK_EQ(errors.size(), 1u);
    CHECK(errors[0].find("out of memory: a run needs a workspace of 2305843009213693952 bytes") == 0);
  }
  {
    static constexpr Kernel kGreedy[] = {{"greedy", [](const OpSpec& spec) {
                                            auto prepared = prepare_task<run_recorded>(spec);
                                            prepared.scratch_bytes = size_t{1} << 61;
                                            return prepared;
                                          }}};
    // Wide enough for all workers to run out of memory at once.
    runtime().set_num_workers(4);
    const Dag wide = stencil_dag(3, 200);
    for (const int64_t cost : {kInline, kInPool}) {
      const auto plan = make_plan(encode_dag(wide, "greedy", cost), kGreedy);
      Waiter waiter;
      DagRun run(*plan);
      run.submit(plan, nullptr, waiter.done());
      const auto errors = waiter.errors();
      CHECK_EQ(errors.size(), 1u);
      CHECK(errors[0].find("out of memory: a worker needs 2305843009213693952 bytes of scratch") == 0);
    }
  }
  run_and_check(recorded_plan(dag, kInPool), dag);
}

class Recorder : public Observer {
 public:
  void on_tile(const TileEvent& event) noexcept override {
    const std::lock_guard lock(mutex_);
    CHECK(event.begin_ns <= event.end_ns);
    events.push_back(event);
  }
  std::vector<TileEvent> events;

 private:
  std::mutex mutex_;
};

// One byte from the input, or a one where there is none.
const char* copy_byte(const TileArgs& args) noexcept {
  const auto* const from = args.state == nullptr ? nullptr : static_cast<const std::byte*>(args.inputs[0]);
  *static_cast<std::byte*>(args.output) = from == nullptr ? std::byte{1} : *from;
  return nullptr;
}

TEST(a_result_that_is_read_is_cleared_unless_the_graph_is_trusted) {
  GraphBuilder builder;
  const int64_t early = builder.result(DType::kU8, {1}), late = builder.result(DType::kU8, {1});
  builder.op("read", "byte", {builder.whole(late)}, early, {}, 0);
  builder.op("write", "byte", {}, late, {}, 1);
  for (const int64_t op : {0, 1}) builder.tile(op, {0}, {1}, kInline);  // no edge, and the reader comes first
  const Kernel kernel{"byte", [](const OpSpec& spec) -> PreparedOp {
                        return {spec.inputs.empty() ? nullptr : std::make_unique<OpState>(), copy_byte, 0};
                      }};
  KernelRegistry registry;
  registry.add({&kernel, 1});
  const auto read = [&](bool trusted) {
    const auto plan = std::make_shared<const Plan>(parse_graph(builder.encode()), registry, trusted);
    std::byte bytes[2] = {std::byte{42}, std::byte{42}};
    void* const results[2] = {&bytes[0], &bytes[1]};
    Waiter waiter;
    runtime().submit(plan, {}, results, waiter.done());
    waiter.wait();
    CHECK_EQ(static_cast<int>(bytes[1]), 1);
    return static_cast<int>(bytes[0]);
  };
  CHECK_EQ(read(false), 0);
  CHECK_EQ(read(true), 42);
}

TEST(observers_see_every_tile) {
  runtime().set_num_workers(3);
  const Dag dag = stencil_dag(20, 20);
  const auto plan = recorded_plan(dag, kInPool), small = recorded_plan(dag, kInline);
  const auto everywhere = std::make_shared<Recorder>(), own = std::make_shared<Recorder>();
  runtime().set_observer(everywhere);
  Recording a(dag), b(dag), c(dag);
  DagRun run(*plan), small_run(*small);
  Waiter waiter;
  run.submit(plan, &a, waiter.done());
  small_run.submit(small, &b, waiter.done(), own);
  waiter.wait();
  runtime().set_observer(nullptr);
  run.submit(plan, &c, waiter.done());
  waiter.wait();
  CHECK_EQ(everywhere->events.size(), dag.size());
  CHECK_EQ(own->events.size(), dag.size());
  for (const TileEvent& event : everywhere->events) {
    CHECK(event.plan == plan.get());
    CHECK(event.worker >= 0 && event.worker < 3);
    CHECK_EQ(event.run, everywhere->events[0].run);
  }
  for (const TileEvent& event : own->events) {
    CHECK(event.plan == small.get());
    CHECK_EQ(event.worker, kCallerThread);
    CHECK_EQ(event.run, everywhere->events[0].run + 1);
  }
}

// Orders of execution with one worker, where they are determined.
std::vector<int32_t> order_of(const Dag& dag, int64_t cost) {
  runtime().set_num_workers(1);
  const auto plan = recorded_plan(dag, cost);
  for (;;) {
    const auto recorder = std::make_shared<Recorder>();
    Recording recording(dag);
    DagRun run(*plan);
    Waiter waiter;
    run.submit(plan, &recording, waiter.done(), recorder);
    waiter.wait();
    std::vector<int32_t> order;
    for (const TileEvent& event : recorder->events) order.push_back(event.tile);
    // A worker that is leaving may still have taken a tile: then there were two, and nothing was determined.
    const int worker = recorder->events.front().worker;
    const auto is_same = [&](const TileEvent& event) { return event.worker == worker; };
    if (std::all_of(recorder->events.begin(), recorder->events.end(), is_same)) return order;
  }
}

TEST(a_dse_walks_to_the_first_ready_child_and_takes_new_heads_shallow_first) {
  // Two roots; root 0 makes 2, 3 and 4 ready: 2 is walked to, 3 and 4 wait behind the shallower root 1. Then 1 makes 5 ready.
  Dag dag;
  dag.add(0, {});
  dag.add(0, {});
  dag.add(1, {0});
  dag.add(1, {0});
  dag.add(1, {0});
  dag.add(2, {1});
  dag.add(3, {2});
  for (const int64_t cost : {kInline, kInPool}) {
    const std::vector<int32_t> expected = {0, 2, 6, 1, 5, 3, 4};
    CHECK(order_of(dag, cost) == expected);
  }
}

TEST(a_child_cache_goes_before_the_row_and_gives_its_last_first) {
  // As above, and seven more children of root 0: one is walked to, three are kept, four go to the row.
  Dag dag;
  dag.add(0, {});
  dag.add(0, {});
  for (int i = 0; i < 8; ++i) dag.add(1, {0});
  for (const int64_t cost : {kInline, kInPool}) {
    runtime().set_policy(kChildCacheOf4);
    const std::vector<int32_t> expected = {0, 2, 5, 4, 3, 1, 6, 7, 8, 9};
    CHECK(order_of(dag, cost) == expected);
    runtime().set_policy(kShallowFirst);
  }
}

TEST(the_important_child_is_walked_to_first) {
  Dag dag;
  dag.add(0, {});
  for (int i = 0; i < 3; ++i) dag.add(1, {0});
  dag.add(2, {2});
  dag.add(2, {2});
  dag.add(2, {3});
  for (const int64_t cost : {kInline, kInPool}) {
    runtime().set_policy(kImportantFirst);
    const std::vector<int32_t> expected = {0, 2, 4, 1, 3, 6, 5};
    CHECK(order_of(dag, cost) == expected);
    runtime().set_policy(kShallowFirst);
  }
}

TEST(policies_have_names) {
  CHECK(policy_named("shallow first") == &kShallowFirst);
  CHECK(policy_named("single queue") == &kSingleQueue);
  CHECK(policy_named("") == nullptr);
  CHECK(policy_names().starts_with("shallow first, "));
}

TEST(policies_are_replaceable) {
  Dag dag;
  dag.add(0, {});
  dag.add(0, {});
  dag.add(1, {0});
  dag.add(1, {0});
  dag.add(2, {0});
  static constexpr Policy kDeepFirst = {
      [](int depth, int max_depth) { return max_depth - depth; },
      [](int self, int attempt, int rows) { return (self + rows - 1 - attempt) % rows; },
      nullptr,
  };
  static constexpr Policy kLastChild = {[](int, int) { return -5; },  // clamped
                                        [](int, int, int) { return 0; },
                                        [](const Traversal&, uint32_t candidate, uint32_t kept) { return candidate > kept; }};
  const std::vector<int32_t> shallow = {0, 2, 1, 3, 4}, deep = {0, 2, 4, 3, 1}, last = {0, 4, 1, 2, 3};
  for (const int64_t cost : {kInline, kInPool}) {
    CHECK(order_of(dag, cost) == shallow);
    runtime().set_policy(kDeepFirst);
    CHECK(order_of(dag, cost) == deep);
    runtime().set_policy(kLastChild);
    CHECK(order_of(dag, cost) == last);
    runtime().set_policy(kShallowFirst);
    CHECK(order_of(dag, cost) == shallow);
  }
}

TEST(one_worker_walks_in_real_time_as_in_simulated_time) {
  static constexpr Policy kLastChild = {[](int depth, int max_depth) { return max_depth - depth; },
                                        [](int, int, int) { return 0; },
                                        [](const Traversal&, uint32_t candidate, uint32_t kept) { return candidate > kept; }};
  std::mt19937_64 random(11);
  for (int i = 0; i < 20; ++i) {
    const Dag dag = random_dag(random, 1 + i * 6, 12, 3);
    const Graph graph = parse_graph(encode_dag(dag, "any", 1));
    for (const Policy* policy : {&kShallowFirst, &kChildCacheOf4, &kChildCacheOf16, &kImportantFirst, &kAllThroughPool,
                                 &kFirstReadyFirst, &kSingleQueue, &kLastChild}) {
      std::vector<int32_t> simulated;
      for (const Placed& placed : simulate(virtual_graph(graph), lanes(1), std::vector<int64_t>(dag.size(), 3), *policy).tiles) {
        simulated.push_back(static_cast<int32_t>(placed.tile));
      }
      runtime().set_policy(*policy);
      CHECK(order_of(dag, kInline) == simulated);
      CHECK(order_of(dag, kInPool) == simulated);
      runtime().set_policy(kShallowFirst);
    }
  }
}

TEST(a_plan_may_be_dropped_while_it_runs) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(40, 20);
  Recording recording(dag);
  auto plan = recorded_plan(dag, kInPool);
  DagRun run(*plan);
  Waiter waiter;
  run.submit(plan, &recording, waiter.done());
  plan.reset();
  CHECK_EQ(text_of(waiter.errors()), "");
  recording.check();
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
