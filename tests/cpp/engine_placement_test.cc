// Moving workers between cores: never off the cores that they may use, and only those that walk.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "aspen_jax/engine/placement.h"

#ifdef __linux__
#include <sched.h>
#endif

#include "engine_check.h"

namespace aspen {
namespace {

constexpr int kMe = 0, kOther = 1, kWorkers = 2;

// A worker that walks one path, which only waits, with or without using its core.
class Walker {
 public:
  Walker(Placement& placement, bool busy) {
    thread_ = std::thread([this, &placement, busy] {
      placement.enter(kOther);
      placement.begin_walk(kOther);
      walks_ = true;
      walks_.notify_one();
      if (busy) {
        while (!stop_) {
        }
      } else {
        stop_.wait(false);
      }
      placement.end_walk(kOther);
      placement.leave(kOther);
    });
    walks_.wait(false);
  }
  ~Walker() { end(); }

  void end() {
    stop_ = true;
    stop_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  std::thread::native_handle_type handle() { return thread_.native_handle(); }

 private:
  std::atomic<bool> walks_{false}, stop_{false};
  std::thread thread_;
};

void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

#ifdef __linux__
cpu_set_t allowed_to(std::thread::native_handle_type thread) {
  cpu_set_t set;
  CHECK_EQ(pthread_getaffinity_np(thread, sizeof(set), &set), 0);
  return set;
}

TEST(who_has_not_run_since_a_look_is_seen) {
  const auto placement = std::make_unique<Placement>();
  placement->enter(kMe);
  for (const bool busy : {false, true}) {
    Walker other(*placement, busy);
    if (placement->look(kMe, kWorkers).empty()) continue;  // the C library does not say where threads are
    // On a busy machine one that computes may wait for its core, and one that will wait may not have got there: again, then.
    bool seen = busy;
    for (int i = 0; i < 1000 && seen == busy; ++i) {
      const auto look = placement->look(kMe, kWorkers);
      wait_a_little();
      seen = placement->waiting(look) == kOther;
    }
    CHECK_EQ(seen, !busy);
  }
  placement->leave(kMe);
}

TEST(moves_bind_nobody) {
  const auto placement = std::make_unique<Placement>();
  placement->enter(kMe);
  const cpu_set_t mine = allowed_to(pthread_self());
  for (const bool busy : {false, true}) {
    for (int i = 0; i < 100; ++i) {
      Walker other(*placement, busy);
      const cpu_set_t its = allowed_to(other.handle());
      placement->make_way(kOther);
      placement->spread(kMe, kWorkers);
      const cpu_set_t mine_now = allowed_to(pthread_self()), its_now = allowed_to(other.handle());
      CHECK(CPU_EQUAL(&mine, &mine_now));
      CHECK(CPU_EQUAL(&its, &its_now));
    }
  }
  placement->leave(kMe);
}

TEST(a_worker_that_wakes_up_on_the_core_of_another_moves_on) {
  const auto placement = std::make_unique<Placement>();
  placement->enter(kMe);
  const cpu_set_t mine = allowed_to(pthread_self());
  // One that waits stays where it is, so nothing but `spread` parts us.
  const int here = sched_getcpu();
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(here, &only);
  CHECK_EQ(sched_setaffinity(0, sizeof(only), &only), 0);
  Walker other(*placement, false);  // inherits the core
  CHECK_EQ(sched_setaffinity(0, sizeof(mine), &mine), 0);
  placement->spread(kMe, kWorkers);
  if (!placement->look(kMe, kWorkers).empty() && CPU_COUNT(&mine) > 1) CHECK(sched_getcpu() != here);
  placement->leave(kMe);
}
#endif

TEST(nobody_looks_at_a_worker_that_has_left) {
  const auto placement = std::make_unique<Placement>();
  placement->enter(kMe);
  Walker other(*placement, false);
  const auto look = placement->look(kMe, kWorkers);
  other.end();
  CHECK(!placement->waiting(look));
  placement->make_way(kOther);
  placement->spread(kMe, kWorkers);
  CHECK(placement->look(kMe, kWorkers).empty());
  placement->leave(kMe);
}

}  // namespace
}  // namespace aspen

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
