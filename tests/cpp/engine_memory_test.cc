// Memory that runs out at any request: the run that asked for it ends with an error, all others go on, and the process lives.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dag.h"
#include "failing_memory.h"
#include "forked_child.h"

namespace aspen::testing {
namespace {

// How many requests are refused: one, one and the next, which an error path may make, or all from then on.
constexpr int64_t kCounts[] = {1, 2, Refusal::kAll};

// The end of a run, kept without taking memory.
struct End {
  std::atomic<bool> is_there{false};
  Failure failure;

  Done done() {
    return [this](const Failure& its) {
      failure = its;
      is_there.store(true);
      is_there.notify_all();
    };
  }
  void wait() { is_there.wait(false); }
};

const char* fail_first_task(const TileArgs& args) noexcept {
  return args.lo[0] == 0 ? "a sentence that is too long for a string without memory of its own" : nullptr;
}

std::atomic<bool> may_end{false};

const char* wait_to_end(const TileArgs&) noexcept {
  may_end.wait(false);
  return nullptr;
}

std::shared_ptr<const Plan> failing_plan(const Dag& dag, int64_t cost) {
  static constexpr Kernel kKernel[] = {{"fails", prepare_task<fail_first_task>}};
  return make_plan(encode_dag(dag, "fails", cost), kKernel);
}

// From bytes to the result, with memory refused from some request on; false if no request came that far.
bool run_with_refusal(const Dag& dag, const std::vector<std::byte>& bytes, int64_t first, int64_t count) {
  static constexpr Kernel kKernel[] = {{"recorded", prepare_task<run_recorded>}};
  Recording recording(dag);
  std::vector<int64_t> result(1000);
  End end;
  const void* operands[] = {&recording};
  void* results[] = {result.data()};
  bool is_parsed = true;
  Refusal refusal(first, count);
  try {
    const auto plan = make_plan(bytes, kKernel);
    runtime().submit(plan, operands, results, end.done());
    end.wait();
  } catch (const std::bad_alloc&) {
    is_parsed = false;
  }
  refusal.end();
  if (is_parsed) {
    if (end.failure.empty()) {
      recording.check();
    } else {
      CHECK(refusal.happened());
      CHECK(end.failure.kind() == Failure::Kind::kOutOfMemory);
      CHECK(end.failure.text().starts_with("out of memory"));
    }
  } else {
    CHECK(refusal.happened());
  }
  return refusal.happened();
}

TEST(a_run_for_which_there_is_no_memory_ends_with_an_error_and_others_go_on) {
  static constexpr Kernel kWaits[] = {{"waits", prepare_task<wait_to_end>}};
  runtime().set_num_workers(3);
  const Dag dag = stencil_dag(5, 6), single = stencil_dag(1, 1);
  run_and_check(recorded_plan(dag, kInPool), dag);
  const auto waiting_plan = make_plan(encode_dag(single, "waits", kInPool), kWaits);
  End other;
  DagRun in_flight(*waiting_plan);
  in_flight.submit(waiting_plan, nullptr, other.done());
  for (const int64_t cost : {kInPool, kInline}) {
    const auto bytes = encode_dag(dag, "recorded", cost);
    for (const int64_t count : kCounts) {
      int64_t first = 0;
      while (run_with_refusal(dag, bytes, first, count)) ++first;
      CHECK(first > 20);
    }
    run_and_check(recorded_plan(dag, cost), dag);
  }
  CHECK(!other.is_there.load());
  may_end.store(true);
  may_end.notify_all();
  other.wait();
  CHECK_EQ(other.failure.text(), "");
}

TEST(a_tile_that_fails_needs_no_memory_to_say_so) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(3, 4);
  run_and_check(recorded_plan(dag, kInPool), dag);
  for (const int64_t cost : {kInPool, kInline}) {
    const auto plan = failing_plan(dag, cost);
    for (const int64_t count : kCounts) {
      bool happened = true;
      for (int64_t first = 0; happened; ++first) {
        End end;
        DagRun run(*plan);
        const void* operands[] = {nullptr};
        void* results[] = {run.result.data()};
        Refusal refusal(first, count);
        runtime().submit(plan, operands, results, end.done());
        end.wait();
        refusal.end();
        happened = refusal.happened();
        CHECK(!end.failure.empty());
        if (!happened) CHECK(end.failure.text().find("failed: a sentence") != std::string::npos);
      }
    }
  }
}

// Each in a child of its own, whose first run starts the workers.
TEST(workers_for_which_there_is_no_memory_are_done_without) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  runtime().set_num_workers(3);
  // A thread that begins allocates, and AddressSanitizer leaves its lock locked in the child of a fork at that moment.
  while (threads_named("aspen-") != 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const int64_t count : kCounts) {
    bool happened = true;
    for (int64_t first = 0; happened; ++first) {
      const pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        is_forked_child = true;
        alarm(60);
        Recording recording(dag);
        End end;
        DagRun run(*plan);
        const void* operands[] = {&recording};
        void* results[] = {run.result.data()};
        Refusal refusal(first, count);
        runtime().submit(plan, operands, results, end.done());
        end.wait();
        refusal.end();
        if (end.failure.empty()) {
          recording.check();
        } else {
          CHECK(end.failure.kind() == Failure::Kind::kOutOfMemory);
        }
        run_and_check(plan, dag);
        _exit(refusal.happened() ? 3 : 0);
      }
      int status = 0;
      CHECK_EQ(waitpid(child, &status, 0), child);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3);
      happened = WEXITSTATUS(status) == 3;
    }
  }
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
