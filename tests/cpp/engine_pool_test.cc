// The Ready Pool by itself: first in, first out in a column; shallow columns first; own row first, then the others; the policy's
// H.
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "aspen_jax/engine/ready_pool.h"
#include "aspen_jax/engine/run_state.h"
#include "dag.h"

namespace aspen::testing {
namespace {

const RunOrder kNoOrder;

// A run with `width` tiles on each of `layers` depths.
struct Fixture {
  Fixture(int layers, int width, const Policy& policy = kShallowFirst) {
    Dag dag;
    for (int layer = 0; layer < layers; ++layer) {
      for (int i = 0; i < width; ++i) dag.add(layer, {});
    }
    plan = recorded_plan(dag, kInPool);
    run = std::make_unique<RunState>(*plan);
    result.resize(static_cast<size_t>(width));
    const void* operands[] = {nullptr};
    void* results[] = {result.data()};
    run->start({plan, nullptr, nullptr, &policy, 0, 0}, operands, results);
  }

  void push(Row& row, const std::vector<uint32_t>& tiles) {
    Batch batch;
    for (const uint32_t tile : tiles) batch.add(&run->node(tile));
    row.push(batch);
  }

  std::shared_ptr<const Plan> plan;
  std::unique_ptr<RunState> run;
  std::vector<int64_t> result;
};

TEST(a_row_pops_shallow_columns_first_and_each_column_in_order) {
  Fixture fixture(4, 4);
  Row row;
  CHECK(!row.has_work());
  CHECK(row.pop(kNoOrder) == nullptr);
  CHECK(row.steal(kNoOrder) == nullptr);
  fixture.push(row, {13, 5, 6});
  fixture.push(row, {2, 12, 4});
  CHECK(row.has_work());
  for (const uint32_t tile : {2, 5, 6, 4}) CHECK_EQ(fixture.run->tile_of(row.pop(kNoOrder)), tile);
  fixture.push(row, {1});
  for (const uint32_t tile : {1, 13, 12}) CHECK_EQ(fixture.run->tile_of(row.steal(kNoOrder)), tile);
  CHECK(!row.has_work());
  CHECK(row.pop(kNoOrder) == nullptr);
  fixture.push(row, {7});
  row.reset();
  CHECK(!row.has_work());
}

TEST(a_dse_takes_from_its_own_row_then_from_the_next) {
  Fixture fixture(2, 4);
  ReadyPool pool;
  pool.ensure_rows(3);
  CHECK(!pool.has_work());
  fixture.push(pool.row(0), {0, 1});
  fixture.push(pool.row(1), {4});
  fixture.push(pool.row(2), {2});
  const auto pop = [&](int self) { return fixture.run->tile_of(pool.pop(self, kShallowFirst)); };
  CHECK_EQ(pop(1), 4u);  // its own, though deeper than all others
  CHECK_EQ(pop(1), 2u);  // then row 2's, then row 0's
  CHECK_EQ(pop(1), 0u);
  CHECK(pool.has_work());
  CHECK_EQ(pop(1), 1u);
  CHECK(pool.pop(1, kShallowFirst) == nullptr);
  CHECK(!pool.has_work());
}

TEST(the_default_policy_is_the_papers) {
  for (const int max_depth : {0, 1, 5, 62, 63, 64, 1000, INT32_MAX}) {
    int before = 0;
    for (int step = 0; step <= 1000; ++step) {
      const int depth = static_cast<int>(int64_t{max_depth} * step / 1000);
      const int column = kShallowFirst.column(depth, max_depth);
      CHECK(column >= before && column < kColumns);
      before = column;
    }
    CHECK_EQ(kShallowFirst.column(0, max_depth), 0);
  }
  // As long as there are enough columns, each depth has its own.
  for (int depth = 1; depth <= kColumns - 1; ++depth) {
    CHECK(kShallowFirst.column(depth, kColumns - 1) > kShallowFirst.column(depth - 1, kColumns - 1));
  }
  for (const int rows : {1, 2, 7}) {
    for (int self = 0; self < rows; ++self) {
      std::set<int> victims = {self};
      for (int attempt = 0; attempt < rows - 1; ++attempt)
        CHECK(victims.insert(kShallowFirst.victim(self, attempt, rows)).second);
      CHECK_EQ(victims.size(), static_cast<size_t>(rows));
    }
  }
  CHECK(kShallowFirst.prefer == nullptr);
}

TEST(a_policys_columns_are_clamped) {
  static const Policy kWild = {[](int depth, int) { return depth == 0 ? 1000 : -1000; }, kShallowFirst.victim, nullptr};
  Fixture fixture(2, 2, kWild);
  Row row;
  fixture.push(row, {0, 1, 2, 3});
  for (const uint32_t tile : {2, 3, 0, 1}) CHECK_EQ(fixture.run->tile_of(row.pop(kNoOrder)), tile);
}

TEST(owners_and_thieves_together_take_each_tile_once) {
  constexpr int kThreads = 4, kWidth = 2000, kLayers = 10;
  Fixture fixture(kLayers, kWidth);
  ReadyPool pool;
  pool.ensure_rows(kThreads);
  std::vector<std::atomic<int>> taken(static_cast<size_t>(kLayers * kWidth));
  std::atomic<int> left{kLayers * kWidth};
  std::vector<std::thread> threads;
  for (int self = 0; self < kThreads; ++self) {
    threads.emplace_back([&, self] {
      // Each thread pushes its share in batches of growing size, and pops in between.
      uint32_t next = static_cast<uint32_t>(self);
      for (size_t size = 1; left.load() > 0;) {
        std::vector<uint32_t> batch;
        for (; next < taken.size() && batch.size() < size; next += kThreads) batch.push_back(next);
        if (!batch.empty()) fixture.push(pool.row(self), batch);
        size = size % 7 + 1;
        for (int i = 0; i < 5; ++i) {
          if (Node* node = pool.pop(self, kShallowFirst)) {
            ++taken[fixture.run->tile_of(node)];
            --left;
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& times : taken) CHECK_EQ(times.load(), 1);
  CHECK(!pool.has_work());
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
