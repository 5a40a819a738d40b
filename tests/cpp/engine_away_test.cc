// Workers that stay away in the `done` of a run: what they wait for goes on without them.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dag.h"
#include "forked_child.h"

namespace aspen::testing {
namespace {

using namespace std::chrono_literals;

// A collective: who enters waits until all have.
class Meeting {
 public:
  explicit Meeting(int count) : missing_(count) {}
  void enter() {
    std::unique_lock lock(mutex_);
    --missing_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int missing_;
};

// A run whose end takes part in a meeting.
struct Device {
  Device(const Dag& dag, std::shared_ptr<const Plan> its_plan) : plan(std::move(its_plan)), recording(dag), run(*plan) {}

  void submit(Meeting& meeting, Waiter& waiter) {
    run.submit(plan, &recording, [&, done = waiter.done()](const Failure& error) {
      meeting.enter();
      done(error);
    });
  }

  std::shared_ptr<const Plan> plan;
  Recording recording;
  DagRun run;
};

TEST(the_end_of_a_run_may_wait_for_the_ends_of_others) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  for (const int workers : {1, 2, 3}) {
    runtime().set_num_workers(workers);
    for (const int devices : {2, 4, 16}) {
      for (int round = 0; round < 10; ++round) {
        Meeting meeting(devices);
        Waiter waiter;
        std::deque<Device> each;
        for (int i = 0; i < devices; ++i) each.emplace_back(dag, plan).submit(meeting, waiter);
        CHECK_EQ(waiter.errors().size(), 0u);
        for (const Device& device : each) device.recording.check();
      }
    }
  }
}

TEST(the_end_of_a_run_may_start_another_run_and_wait_for_it) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  for (const int workers : {1, 2}) {
    runtime().set_num_workers(workers);
    std::function<void(int)> nested = [&](int depth) {
      Recording recording(dag);
      DagRun run(*plan);
      Waiter waiter;
      run.submit(plan, &recording, [&, done = waiter.done()](const Failure& error) {
        if (depth > 0) nested(depth - 1);
        done(error);
      });
      CHECK_EQ(waiter.errors().size(), 0u);
      recording.check();
    };
    for (int round = 0; round < 5; ++round) nested(8);
    run_and_check(plan, dag);
  }
}

TEST(a_run_knows_at_its_end_that_another_thread_stands_in) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  runtime().set_num_workers(1);
  while (threads_named("aspen-") > 1) std::this_thread::sleep_for(1ms);  // those who leave may still run tiles
  CHECK(!runtime().is_replaced());
  Waiter waiter;
  Recording recording(dag);
  DagRun run(*plan);
  std::atomic<bool> before{true}, after{false};
  run.submit(plan, &recording, [&, done = waiter.done()](const Failure& error) {
    before = runtime().is_replaced();
    run_and_check(plan, dag);
    after = runtime().is_replaced();
    done(error);
  });
  CHECK_EQ(waiter.errors().size(), 0u);
  CHECK(!before.load());
  CHECK(after.load());
}

TEST(the_number_of_workers_may_change_while_some_are_away) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  for (const auto& [before, after] : {std::pair{3, 1}, {1, 3}, {2, 2}}) {
    runtime().set_num_workers(before);
    Meeting meeting(5);
    Waiter waiter;
    std::deque<Device> each;
    for (int i = 0; i < 4; ++i) each.emplace_back(dag, plan).submit(meeting, waiter);
    std::this_thread::sleep_for(1ms);
    runtime().set_num_workers(after);
    run_and_check(plan, dag);
    meeting.enter();
    CHECK_EQ(waiter.errors().size(), 0u);
    for (const Device& device : each) device.recording.check();
    for (int i = 0; i < 20; ++i) run_and_check(plan, dag);
  }
}

TEST(a_child_forked_by_a_worker_that_is_away_has_workers_of_its_own) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  for (const int workers : {1, 2}) {
    runtime().set_num_workers(workers);
    Waiter waiter;
    Recording recording(dag);
    DagRun run(*plan);
    std::atomic<int> status{-1};
    run.submit(plan, &recording, [&, done = waiter.done()](const Failure& error) {
      const pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        is_forked_child = true;
        for (int i = 0; i < 3; ++i) run_and_check(plan, dag);
        std::exit(0);
      }
      int result = 0;
      CHECK_EQ(waitpid(child, &result, 0), child);
      status = result;
      done(error);
    });
    CHECK_EQ(waiter.errors().size(), 0u);
    CHECK(WIFEXITED(status.load()) && WEXITSTATUS(status.load()) == 0);
    run_and_check(plan, dag);
  }
}

// Has three threads meet: each errand needs one of its own.
void lend_three() {
  struct Errands {
    Meeting meeting{3};
    std::latch done{3};
  };
  const auto errands = std::make_shared<Errands>();
  for (int i = 0; i < 3; ++i) {
    runtime().lend([errands](Arena& scratch) {
      CHECK(scratch.grow(4096));
      errands->meeting.enter();
      errands->done.count_down();
    });
  }
  errands->done.wait();
}

TEST(lent_threads_are_kept_and_others_stand_in_meanwhile) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  runtime().set_num_workers(2);
  std::vector<std::thread> lenders;
  for (int i = 0; i < 4; ++i) {
    lenders.emplace_back([] {
      for (int round = 0; round < 40; ++round) lend_three();
    });
  }
  for (int round = 0; round < 5; ++round) {
    Meeting meeting(4);
    Waiter waiter;
    std::deque<Device> each;
    for (int i = 0; i < 4; ++i) each.emplace_back(dag, plan).submit(meeting, waiter);
    CHECK_EQ(waiter.errors().size(), 0u);
  }
  for (std::thread& lender : lenders) lender.join();
  CHECK(threads_named("aspen spare") >= 3);
  const pid_t child = fork();
  if (child == 0) {
    is_forked_child = true;
    for (int i = 0; i < 3; ++i) lend_three();
    run_and_check(plan, dag);
    std::exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  lend_three();
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
