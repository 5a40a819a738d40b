// The recorder: every tile of every run once, while workers write and others read.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aspen_jax/engine/recorder.h"
#include "dag.h"

namespace aspen::testing {
namespace {

std::vector<std::shared_ptr<const Plan>> known;  // while runs are in flight, it does not change

PlanInUse find_known(const Plan* plan) {
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].get() == plan) return {known[i], std::to_string(i)};
  }
  return {};
}

// Several threads that each run all plans some times; the tiles of a round of all threads.
size_t run_from_threads(const std::vector<Dag>& dags, int threads, int repeats) {
  std::vector<std::thread> all;
  std::atomic<size_t> tiles = 0;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      for (int repeat = 0; repeat < repeats; ++repeat) {
        for (size_t i = 0; i < dags.size(); ++i) {
          run_and_check(known[i], dags[i]);
          tiles.fetch_add(dags[i].size(), std::memory_order_relaxed);
        }
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  return tiles;
}

std::vector<Dag> make_known(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Dag> dags;
  known.clear();
  for (int i = 0; i < 5; ++i) {
    dags.push_back(random_dag(random, 20, 30, 4));
    known.push_back(recorded_plan(dags.back(), i == 4 ? kInline : kInPool));
  }
  return dags;
}

struct Row {
  int64_t plan, run, tile, worker, begin, end;
};

std::vector<Row> rows_of(const Recorder& recorder) {
  const std::vector<int64_t> numbers = recorder.rows();
  CHECK_EQ(numbers.size() % Recorder::kColumns, 0u);
  std::vector<Row> rows;
  for (size_t i = 0; i < numbers.size(); i += Recorder::kColumns) {
    const int64_t* const row = &numbers[i];
    rows.push_back({row[0], row[1], row[2], row[3], row[4], row[5]});
  }
  return rows;
}

TEST(every_tile_of_every_run_is_recorded_once_under_its_plan) {
  runtime().set_num_workers(3);
  const std::vector<Dag> dags = make_known(1);
  const auto recorder = std::make_shared<Recorder>(200'000, find_known);
  runtime().set_observer(recorder);
  const size_t tiles = run_from_threads(dags, 4, 3);
  runtime().set_observer(nullptr);
  CHECK_EQ(recorder->num_seen(), tiles);
  CHECK_EQ(recorder->first_left_out_ns(), 0);
  const std::vector<std::string> graphs = recorder->graphs();
  CHECK_EQ(graphs.size(), dags.size());
  std::map<int64_t, std::pair<int64_t, std::set<int64_t>>> runs;  // of each run: its plan and tiles
  for (const Row& row : rows_of(*recorder)) {
    CHECK(row.begin > 0 && row.begin <= row.end);
    CHECK(row.worker >= kCallerThread && row.worker < 3);
    auto& [plan, of_run] = runs.try_emplace(row.run, row.plan, std::set<int64_t>{}).first->second;
    CHECK_EQ(plan, row.plan);
    CHECK(of_run.insert(row.tile).second);
  }
  CHECK_EQ(runs.size(), 4u * 3u * dags.size());
  for (const auto& [run, of_run] : runs) {
    const size_t number = std::stoul(graphs[static_cast<size_t>(of_run.first)]);
    CHECK_EQ(of_run.second.size(), dags[number].size());
  }
}

TEST(what_finds_no_room_is_counted) {
  runtime().set_num_workers(2);
  const std::vector<Dag> dags = make_known(2);
  const auto recorder = std::make_shared<Recorder>(50, find_known);
  runtime().set_observer(recorder);
  const size_t tiles = run_from_threads(dags, 2, 2);
  runtime().set_observer(nullptr);
  CHECK_EQ(recorder->num_seen(), tiles);
  CHECK_EQ(rows_of(*recorder).size(), 50u);
  CHECK(recorder->first_left_out_ns() > 0);
}

TEST(what_is_read_while_workers_write_is_complete) {
  runtime().set_num_workers(3);
  const std::vector<Dag> dags = make_known(3);
  const auto recorder = std::make_shared<Recorder>(100'000, find_known);
  runtime().set_observer(recorder);
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    size_t before = 0;
    while (!is_over.load(std::memory_order_relaxed)) {
      const std::vector<Row> rows = rows_of(*recorder);
      CHECK(rows.size() >= before);
      before = rows.size();
      for (const Row& row : rows) {
        CHECK(row.begin > 0 && row.begin <= row.end && row.tile >= 0);
        CHECK(row.plan >= 0 && static_cast<size_t>(row.plan) < recorder->graphs().size());
      }
      std::this_thread::yield();
    }
  });
  const size_t tiles = run_from_threads(dags, 2, 3);
  is_over.store(true, std::memory_order_relaxed);
  reader.join();
  runtime().set_observer(nullptr);
  CHECK_EQ(rows_of(*recorder).size(), tiles);
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
