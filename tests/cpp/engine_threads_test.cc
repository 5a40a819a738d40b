// Threads that the system refuses: runs go on with those there are, or with none, and the rest is asked for again.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <deque>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "dag.h"

namespace aspen::testing {
namespace {

std::atomic<int> threads_left{INT_MAX};  // before the system refuses

}  // namespace
}  // namespace aspen::testing

// In place of the C library's.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (aspen::testing::threads_left.fetch_sub(1) <= 0) {
    aspen::testing::threads_left.store(0);
    return EAGAIN;
  }
  return create(thread, attributes, start, argument);
}

namespace aspen::testing {
namespace {

using namespace std::chrono_literals;

int workers() { return threads_named("aspen-"); }

void expect_workers(int count) {
  for (int i = 0; i < 10'000 && workers() != count; ++i) std::this_thread::sleep_for(1ms);
  CHECK_EQ(workers(), count);
}

// Runs until there are so many workers; each run must succeed.
void run_until(int count, const std::shared_ptr<const Plan>& plan, const Dag& dag) {
  for (int i = 0; i < 10'000 && workers() != count; ++i) {
    run_and_check(plan, dag);
    std::this_thread::sleep_for(1ms);
  }
  CHECK_EQ(workers(), count);
}

// The tests follow each other: the first begins without workers.
TEST(the_caller_runs_tiles_where_all_threads_are_refused) {
  const Dag dag = stencil_dag(6, 6);
  const auto plan = recorded_plan(dag, kInPool);
  runtime().set_num_workers(4);
  threads_left.store(0);
  bool is_refused = false;
  try {
    runtime().lend([](Arena&) { std::abort(); });
  } catch (const std::system_error&) {
    is_refused = true;
  }
  CHECK(is_refused);
  for (int i = 0; i < 3; ++i) run_and_check(plan, dag);
  CHECK_EQ(workers(), 0);
  // The next run asks again.
  threads_left.store(2);
  run_and_check(plan, dag);
  expect_workers(2);
}

TEST(threads_that_were_refused_are_asked_for_again) {
  const Dag dag = stencil_dag(6, 6);
  const auto plan = recorded_plan(dag, kInPool);
  // One thread more, which stands in for workers that are away (engine_away_test.cc), so that no later one is taken for that.
  threads_left.store(1);
  std::latch meeting(3);
  Waiter waiter;
  std::deque<std::pair<Recording, DagRun>> runs;
  for (int i = 0; i < 3; ++i) {
    auto& [recording, run] = runs.emplace_back(dag, *plan);
    run.submit(plan, &recording, [&, done = waiter.done()](const Failure& failure) {
      meeting.arrive_and_wait();
      done(failure);
    });
  }
  CHECK_EQ(waiter.errors().size(), 0u);
  CHECK_EQ(threads_left.load(), 0);
  // Two of four are there, and go on alone.
  for (int i = 0; i < 100; ++i) run_and_check(plan, dag);
  CHECK_EQ(workers(), 2);
  CHECK_EQ(runtime().num_workers(), 4);
  threads_left.store(1);
  run_until(3, plan, dag);
  threads_left.store(INT_MAX);
  run_until(4, plan, dag);
}

TEST(more_workers_than_the_system_allows_are_as_many_as_it_allows) {
  const Dag dag = stencil_dag(6, 6);
  const auto plan = recorded_plan(dag, kInPool);
  threads_left.store(3);
  runtime().set_num_workers(16);
  run_and_check(plan, dag);
  expect_workers(7);
  runtime().set_num_workers(2);
  expect_workers(2);
  threads_left.store(INT_MAX);
  runtime().set_num_workers(5);
  run_until(5, plan, dag);
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
