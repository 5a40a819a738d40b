// The order between runs that are in the Ready Pool at once: by arrival, by run key, and nobody starves.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "aspen_jax/engine/ready_pool.h"
#include "aspen_jax/engine/run_order.h"
#include "dag.h"

namespace aspen::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(what_is_due_first_goes_first) {
  RunOrder order;
  CHECK(!order.has_many());
  const int late = order.enter(30), early = order.enter(10);
  CHECK(order.has_many());
  const int middle = order.enter(20);
  const auto bit = [](int slot) { return uint64_t{1} << slot; };
  CHECK_EQ(order.first_of(bit(late) | bit(early) | bit(middle)), early);
  CHECK_EQ(order.first_of(bit(late) | bit(middle)), middle);
  CHECK_EQ(order.first_of(bit(late)), late);
  CHECK_EQ(order.ahead_of(late), bit(early) | bit(middle));
  CHECK_EQ(order.ahead_of(early), 0u);
  order.leave(early);
  CHECK_EQ(order.ahead_of(middle), 0u);
  CHECK_EQ(order.enter(5), early);  // the slot that is free
  CHECK_EQ(order.ahead_of(middle), bit(early));
}

TEST(there_is_a_slot_for_each_of_63_runs) {
  RunOrder order;
  for (int i = 0; i < RunOrder::kSlots; ++i) CHECK_EQ(order.enter(i), i);
  CHECK_EQ(order.enter(99), RunOrder::kNoSlot);
  order.leave(40);
  CHECK_EQ(order.enter(99), 40);
  CHECK_EQ(order.enter(99), RunOrder::kNoSlot);
}

// A context's task ends when the gate is open, and then calls what the context holds.
struct Gate {
  std::atomic<bool> is_open{false}, has_begun{false};
  std::function<void(size_t task)> act;
};

const char* run_at_gate(const TileArgs& args) noexcept {
  auto& gate = *static_cast<Gate*>(const_cast<void*>(args.inputs[0]));
  gate.has_begun = true;
  while (!gate.is_open.load()) std::this_thread::yield();
  if (gate.act) gate.act(static_cast<size_t>(static_cast<const FirstTask*>(args.state)->task + args.lo[0]));
  return nullptr;
}

std::shared_ptr<const Plan> gated_plan(const Dag& dag) {
  static constexpr Kernel kKernel[] = {{"gated", prepare_task<run_at_gate>}};
  return make_plan(encode_dag(dag, "gated", kInPool), kKernel);
}

Dag chain_dag(int length) {
  Dag dag;
  for (int i = 0; i < length; ++i) dag.add(i, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  return dag;
}

// The runs whose tiles ran, in that order, each named once for a stretch of its tiles.
class Log : public Observer {
 public:
  void on_tile(const TileEvent& event) noexcept override {
    const std::lock_guard lock(mutex_);
    if (stretches_.empty() || stretches_.back() != event.run) stretches_.push_back(event.run);
  }
  std::vector<uint64_t> stretches() const {
    const std::lock_guard lock(mutex_);
    return stretches_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<uint64_t> stretches_;
};

// Runs with these keys, submitted one after the other while the only worker is busy; in which order they ran.
std::vector<size_t> order_of(const std::vector<int64_t>& keys) {
  runtime().set_num_workers(1);
  const Dag dag = stencil_dag(4, 5);
  const auto plan = gated_plan(dag), first = gated_plan(chain_dag(1));
  const auto log = std::make_shared<Log>();
  Gate closed, open;
  open.is_open = true;
  Waiter waiter;
  DagRun blocker(*first);
  blocker.submit(first, &closed, waiter.done(), log);
  while (!closed.has_begun.load()) std::this_thread::yield();
  std::vector<std::unique_ptr<DagRun>> runs;
  for (const int64_t key : keys) {
    runs.push_back(std::make_unique<DagRun>(*plan));
    runs.back()->submit(plan, &open, waiter.done(), log, key);
  }
  closed.is_open = true;
  CHECK_EQ(waiter.errors().size(), 0u);
  const auto stretches = log->stretches();
  CHECK_EQ(stretches.size(), keys.size() + 1);  // none was interrupted
  std::vector<size_t> order;
  for (size_t i = 1; i < stretches.size(); ++i) order.push_back(stretches[i] - stretches[0] - 1);
  return order;
}

TEST(runs_of_equal_keys_go_in_the_order_of_their_arrival) {
  const auto order = order_of(std::vector<int64_t>(10));
  for (size_t i = 0; i < order.size(); ++i) CHECK_EQ(order[i], i);
}

TEST(runs_go_in_the_order_of_their_keys) {
  const auto order = order_of({0, 500'000 * kMs, -500'000 * kMs, 100'000 * kMs, 0, -500'000 * kMs});
  const std::vector<size_t> wanted = {2, 5, 0, 4, 3, 1};
  for (size_t i = 0; i < order.size(); ++i) CHECK_EQ(order[i], wanted[i]);
}

TEST(runs_that_find_no_slot_wait_in_order) {
  std::vector<int64_t> keys(3 * RunOrder::kSlots);
  keys.back() = -1'000'000 * kMs;  // it gets the first slot that becomes free, and then goes before all others
  const auto order = order_of(keys);
  CHECK_EQ(order[0], keys.size() - 1);
  for (size_t i = 1; i < order.size(); ++i) CHECK_EQ(order[i], i - 1);
}

TEST(keys_are_clamped) {
  const auto order = order_of({INT64_MAX, INT64_MIN});
  CHECK_EQ(order[0], 1u);
}

// A run that comes while a tile of another runs: it has the worker from the end of that tile until it ends itself.
void check_interrupts(int64_t key, bool interrupts) {
  runtime().set_num_workers(1);
  const auto long_plan = gated_plan(chain_dag(100)), short_plan = gated_plan(stencil_dag(3, 4));
  const auto log = std::make_shared<Log>();
  Gate open, with_action;
  open.is_open = with_action.is_open = true;
  Waiter waiter;
  DagRun newcomer(*short_plan), long_run(*long_plan);
  with_action.act = [&](size_t task) {
    if (task == 50) newcomer.submit(short_plan, &open, waiter.done(), log, key);
  };
  long_run.submit(long_plan, &with_action, waiter.done(), log);
  CHECK_EQ(waiter.errors().size(), 0u);
  const auto stretches = log->stretches();
  CHECK_EQ(stretches.size(), interrupts ? 3u : 2u);
  CHECK(stretches[0] != stretches[1]);
}

TEST(a_run_that_goes_first_takes_over_at_the_end_of_a_tile) { check_interrupts(-1'000'000 * kMs, true); }

TEST(a_run_that_came_later_does_not_interrupt) { check_interrupts(0, false); }

TEST(a_stream_of_runs_delays_another_for_no_longer_than_the_keys_differ) {
  for (const int workers : {1, 3}) {
    runtime().set_num_workers(workers);
    const auto plan = gated_plan(stencil_dag(4, 8));
    Gate gate;
    gate.is_open = true;
    std::atomic<bool> is_over{false};
    Waiter stream, waiter;
    // Each of four runs is followed by another one when it ends, which goes before the patient one for 50 ms.
    struct Link {
      std::shared_ptr<const Plan> plan;
      Gate& gate;
      std::atomic<bool>& is_over;
      Done last;
      DagRun run{*plan};
      void go() {
        run.submit(
            plan, &gate,
            [this](const std::string& error) {
              CHECK_EQ(error, "");
              if (is_over.load()) {
                last({});
              } else {
                go();
              }
            },
            nullptr, -50 * kMs);
      }
    };
    std::vector<std::unique_ptr<Link>> links;
    for (int i = 0; i < 4; ++i) links.push_back(std::unique_ptr<Link>(new Link{plan, gate, is_over, stream.done()}));
    for (auto& link : links) link->go();
    DagRun patient(*plan);
    patient.submit(plan, &gate, waiter.done());
    CHECK_EQ(waiter.errors().size(), 0u);  // while the stream goes on
    is_over.store(true);
    CHECK_EQ(stream.errors().size(), 0u);
  }
}

TEST(runs_of_all_keys_from_many_threads_run_each_tile_once) {
  std::mt19937_64 random(1);
  std::vector<Dag> dags;
  std::vector<std::shared_ptr<const Plan>> plans;
  for (int i = 0; i < 4; ++i) {
    dags.push_back(random_dag(random, 20, 30, 4));
    plans.push_back(recorded_plan(dags.back(), kInPool));
  }
  for (const int workers : {1, 2, 5, 16}) {
    runtime().set_num_workers(workers);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 mine(static_cast<uint64_t>(t));
        for (int round = 0; round < 5; ++round) {
          Waiter waiter;
          std::vector<std::unique_ptr<Recording>> recordings;
          std::vector<std::unique_ptr<DagRun>> runs;
          for (int i = 0; i < 25; ++i) {  // with the other threads' more than there are slots
            const size_t which = mine() % plans.size();
            recordings.push_back(std::make_unique<Recording>(dags[which]));
            runs.push_back(std::make_unique<DagRun>(*plans[which]));
            runs.back()->submit(plans[which], recordings.back().get(), waiter.done(), nullptr,
                                static_cast<int64_t>(mine() % 5) * kMs - 2 * kMs);
          }
          CHECK_EQ(waiter.errors().size(), 0u);
          for (const auto& recording : recordings) recording->check();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

const char* run_and_fail(const TileArgs&) noexcept { return "no"; }

TEST(a_run_that_fails_ahead_of_another_lets_it_go_on) {
  static constexpr Kernel kKernel[] = {{"failing", prepare_task<run_and_fail>}};
  runtime().set_num_workers(1);
  const auto failing = make_plan(encode_dag(stencil_dag(5, 5), "failing", kInPool), kKernel);
  const Dag dag = stencil_dag(20, 10);
  const auto plan = recorded_plan(dag, kInPool);
  for (int i = 0; i < 20; ++i) {
    Recording recording(dag);
    DagRun good(*plan), bad(*failing);
    Waiter waiter, bad_waiter;
    good.submit(plan, &recording, waiter.done());
    bad.submit(failing, nullptr, bad_waiter.done(), nullptr, -1'000 * kMs);
    CHECK_EQ(waiter.errors().size(), 0u);
    CHECK_EQ(bad_waiter.errors().size(), 1u);
    recording.check();
  }
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
