// Where idle workers sleep: that none does while there is work, in the orders of events in which that is hardest to see.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aspen_jax/engine/parking.h"
#include "engine_check.h"

namespace aspen::testing {
namespace {

using namespace std::chrono_literals;

void wait_for(const std::function<bool()>& is, const char* what) {
  for (int i = 0; i < 10'000 && !is(); ++i) std::this_thread::sleep_for(1ms);
  if (!is()) fail(__FILE__, __LINE__, std::string("in ten seconds it did not happen that ") + what);
}

// Work that is only counted.
struct Work {
  Parking parking;
  std::atomic<int> count{0};

  void bring() {
    count.fetch_add(1, std::memory_order_seq_cst);
    parking.wake(1);
  }
  bool take() {
    int left = count.load(std::memory_order_seq_cst);
    while (left > 0 && !count.compare_exchange_weak(left, left - 1, std::memory_order_seq_cst)) continue;
    return left > 0;
  }
};

// A worker that takes one piece of work, and is busy with it from then on.
struct Worker {
  Work& work;
  std::function<bool()> first_look;  // in place of the first one
  std::atomic<bool> is_about_to_sleep{false}, is_busy{false};
  int looks = 0;

  Worker* look() noexcept {
    if (looks++ == 0 && first_look) return first_look() ? this : nullptr;
    return take();
  }
  Worker* take() noexcept { return work.take() ? this : nullptr; }
  bool has_work() const noexcept { return work.count.load(std::memory_order_seq_cst) > 0; }
  static bool is_over() noexcept { return false; }
  void before_sleep() noexcept { is_about_to_sleep.store(true); }
  static void after_sleep() noexcept {}

  void run() {
    CHECK(work.parking.seek(*this) == this);
    is_busy.store(true);
  }
};

// Those who are asleep when the test begins.
struct Sleepers {
  Sleepers(Work& work, int count) {
    for (int i = 0; i < count; ++i) {
      workers.push_back(std::make_unique<Worker>(work));
      threads.emplace_back([&worker = *workers.back()] { worker.run(); });
    }
    for (const auto& worker : workers) wait_for([&] { return worker->is_about_to_sleep.load(); }, "a worker went to sleep");
    std::this_thread::sleep_for(50ms);  // until it does
  }
  void check_busy() {
    for (const auto& worker : workers)
      wait_for([&] { return worker->is_busy.load(); }, "a worker woke up for the work there was");
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
};

TEST(who_sees_work_before_it_sleeps_leaves_none_to_those_who_sleep) {
  for (int round = 0; round < 20; ++round) {
    Work work;
    Sleepers sleepers(work, 1);
    std::atomic<bool> second_looks{false}, first_is_busy{false};
    // The first has found a tile, and two more come while both still count as looking: nobody is woken. Then the second, which
    // has found nothing, is the last to stop looking.
    Worker first{work, [&] {
                   wait_for([&] { return second_looks.load(); }, "the second looked");
                   work.bring();
                   work.bring();
                   return true;
                 }};
    Worker second{work, [&] {
                    second_looks.store(true);
                    wait_for([&] { return first_is_busy.load(); }, "the first was busy");
                    return false;
                  }};
    std::thread runs_first([&] {
      first.run();
      first_is_busy.store(true);
    });
    second.run();
    runs_first.join();
    sleepers.check_busy();
  }
}

TEST(who_wakes_up_wakes_another_while_there_is_work) {
  for (int round = 0; round < 20; ++round) {
    Work work;
    Sleepers sleepers(work, 4);
    // Five come while somebody counts as looking who has found a tile already.
    Worker finder{work, [&] {
                    for (int i = 0; i < 5; ++i) work.bring();
                    return true;
                  }};
    finder.run();
    sleepers.check_busy();
    CHECK_EQ(work.count.load(), 1);
  }
}

TEST(workers_that_come_and_go_take_up_all_work) {
  constexpr int kWorkers = 4, kRounds = 3000;
  Work work;
  std::atomic<int> done{0};
  std::atomic<bool> is_over{false};
  struct Taker {
    Work& work;
    std::atomic<bool>& over;
    Taker* look() noexcept {
      for (int i = 0; i < 20; ++i) {
        if (work.take()) return this;
      }
      return nullptr;
    }
    Taker* take() noexcept { return work.take() ? this : nullptr; }
    bool has_work() const noexcept { return work.count.load(std::memory_order_seq_cst) > 0; }
    bool is_over() const noexcept { return over.load(std::memory_order_seq_cst); }
    static void before_sleep() noexcept {}
    static void after_sleep() noexcept {}
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&] {
      while (work.parking.seek(Taker{work, is_over}) != nullptr) done.fetch_add(1);
    });
  }
  for (int round = 1; round <= kRounds; ++round) {
    for (int i = 0; i < round % 3 + 1; ++i) work.bring();
    if (round % 2 == 0) wait_for([&] { return work.count.load() == 0; }, "all work was taken");
  }
  wait_for([&] { return work.count.load() == 0; }, "all work was taken");
  is_over.store(true, std::memory_order_seq_cst);
  work.parking.wake_all();
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(done.load(), kRounds / 3 * 6);
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
