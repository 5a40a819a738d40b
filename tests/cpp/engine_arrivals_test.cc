// Runs that begin before their operands are complete: order, errors, cancelling, and many of them beside ordinary runs.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "aspen_jax/engine/arrivals.h"
#include "aspen_jax/engine/ready_pool.h"
#include "dag.h"

namespace aspen::testing {
namespace {

constexpr int kRounds = ASPEN_SMALL_TESTS ? 4 : 20;

// Which pieces each task of a Dag reads.
struct Reads {
  std::vector<std::vector<size_t>> pieces;
  size_t num_pieces;

  std::shared_ptr<const Arrivals> arrivals(const std::shared_ptr<const Plan>& plan) const {
    std::vector<int64_t> counts(num_pieces), tiles;
    for (size_t piece = 0; piece < num_pieces; ++piece) {
      for (size_t task = 0; task < pieces.size(); ++task) {
        const auto count = std::ranges::count(pieces[task], piece);
        counts[piece] += count;
        tiles.insert(tiles.end(), static_cast<size_t>(count), static_cast<int64_t>(task));
      }
    }
    return std::make_shared<const Arrivals>(plan, counts, tiles);
  }
};

// Some tasks read nothing, some several pieces, some one twice; a few pieces are read by nobody.
Reads random_reads(std::mt19937_64& random, const Dag& dag, size_t num_pieces) {
  Reads reads{std::vector<std::vector<size_t>>(dag.size()), num_pieces};
  for (auto& pieces : reads.pieces) {
    for (size_t k = num_pieces == 0 ? 0 : random() % 3; k > 0; --k) pieces.push_back(random() % num_pieces);
  }
  return reads;
}

// What a run reads and writes: plain memory, so that ThreadSanitizer sees a piece that is read before it has arrived.
struct Bytes {
  Bytes(const Dag& dag, const Reads& reads) : recording(dag), reads(reads), pieces(reads.num_pieces) {}
  Recording recording;
  const Reads& reads;
  std::vector<int64_t> pieces;
};

const char* run_reading(const TileArgs& args) noexcept {
  auto& bytes = *static_cast<Bytes*>(const_cast<void*>(args.inputs[0]));
  const auto task = static_cast<size_t>(static_cast<const FirstTask*>(args.state)->task + args.lo[0]);
  for (const size_t piece : bytes.reads.pieces[task]) CHECK_EQ(bytes.pieces[piece], 1);
  bytes.recording.execute(task);
  return nullptr;
}

const char* run_failing(const TileArgs& args) noexcept {
  return static_cast<const FirstTask*>(args.state)->task == 0 ? "no" : nullptr;
}

std::shared_ptr<const Plan> reading_plan(const Dag& dag, int64_t tile_cost = 1000) {
  static constexpr Kernel kKernel[] = {{"reading", prepare_task<run_reading>}};
  return make_plan(encode_dag(dag, "reading", tile_cost), kKernel);
}

std::shared_ptr<const Plan> failing_plan(const Dag& dag) {
  static constexpr Kernel kKernel[] = {{"failing", prepare_task<run_failing>}};
  return make_plan(encode_dag(dag, "failing", 1000), kKernel);
}

struct Arriving {
  Arriving(const std::shared_ptr<const Arrivals>& arrivals, const void* context, Done done,
           std::shared_ptr<Observer> observer = nullptr, const Policy* policy = nullptr, std::shared_ptr<Watch> watch = nullptr)
      : result(static_cast<size_t>(arrivals->plan()->result(0).dense.shape[0])) {
    const void* operands[] = {context};
    void* results[] = {result.data()};
    run = runtime().start(arrivals, operands, results, std::move(done), std::move(observer), std::nullopt, policy,
                          std::move(watch));
  }

  std::vector<int64_t> result;
  std::shared_ptr<ArrivingRun> run;
};

std::vector<size_t> shuffled(std::mt19937_64& random, size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::shuffle(order, random);
  return order;
}

// First in the file: a worker that leaves may still walk a path.
TEST(deep_tiles_go_first_where_the_run_says_so) {
  runtime().set_num_workers(1);
  // Four chains of three tasks: deep first ends a chain before it begins the next.
  Dag dag;
  for (int i = 0; i < 12; ++i) dag.add(i / 4, i < 4 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 4});
  const auto plan = reading_plan(dag, kInPool);
  const Reads reads{std::vector<std::vector<size_t>>(dag.size()), 0};
  for (const Policy* policy : {&kDeepFirst, &kAllThroughPool}) {
    Bytes bytes(dag, reads);
    const auto ended = std::make_shared<EndedTiles>(std::vector<uint8_t>(dag.size(), 1));
    const Arriving arriving(reads.arrivals(plan), &bytes, [&](const Failure& failure) { ended->close(failure); }, ended, policy);
    CHECK_EQ(ended->error(std::nullopt).value(), "");
    const auto order = ended->take(std::nullopt);
    CHECK_EQ(order.size(), dag.size());
    CHECK_EQ(order[2], policy == &kDeepFirst ? 8 : 2);
  }
}

TEST(pieces_in_any_order_from_many_threads_run_each_tile_once_after_what_it_reads) {
  std::mt19937_64 random(1);
  for (int round = 0; round < kRounds; ++round) {
    for (const int workers : {1, 2, 5}) {
      runtime().set_num_workers(workers);
      const Dag dag = random_dag(random, 12, 20, 4);
      const auto plan = reading_plan(dag, round % 2 == 0 ? kInline : kInPool);
      const Reads reads = random_reads(random, dag, random() % 40);
      const auto arrivals = reads.arrivals(plan);
      CHECK_EQ(arrivals->num_pieces(), reads.num_pieces);
      for (int again = 0; again < 3; ++again) {
        Bytes bytes(dag, reads);
        Waiter waiter;
        const Arriving arriving(arrivals, &bytes, waiter.done(), nullptr, again == 1 ? &kDeepFirst : nullptr);
        const auto order = shuffled(random, reads.num_pieces);
        std::vector<std::thread> threads;
        for (size_t t = 0; t < 3; ++t) {
          threads.emplace_back([&, t] {
            for (size_t i = t; i < order.size(); i += 3) {
              bytes.pieces[order[i]] = 1;
              arriving.run->arrived(order[i]);
            }
          });
        }
        for (auto& thread : threads) thread.join();
        CHECK_EQ(waiter.errors().size(), 0u);
        bytes.recording.check();
      }
    }
  }
}

TEST(a_run_ends_with_its_last_piece_even_if_nobody_reads_it) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(3, 4);
  const auto plan = reading_plan(dag);
  const Reads reads{std::vector<std::vector<size_t>>(dag.size()), 1};
  Bytes bytes(dag, reads);
  const auto ended = std::make_shared<EndedTiles>(std::vector<uint8_t>(dag.size(), 1));
  std::atomic<bool> is_done{false};
  const Arriving arriving(
      reads.arrivals(plan), &bytes,
      [&](const Failure& failure) {
        CHECK_EQ(failure.text(), "");
        is_done = true;
        ended->close(failure);
      },
      ended);
  for (size_t seen = 0; seen < dag.size();) seen += ended->take(std::nullopt).size();
  CHECK(!is_done.load());
  arriving.run->arrived(0);
  CHECK_EQ(ended->error(std::nullopt).value(), "");
  CHECK(is_done.load());
  CHECK_THROWS(arriving.run->arrived(0), "has arrived already");  // the run is gone
  bytes.recording.check();
}

TEST(tiles_are_announced_before_the_last_piece_arrives) {
  runtime().set_num_workers(2);
  // Two chains that do not meet; each begins with a piece of its own.
  Dag dag;
  for (int i = 0; i < 6; ++i) dag.add(i / 2, i < 2 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 2});
  const Reads reads{{{0}, {1}, {}, {}, {}, {}}, 2};
  const auto plan = reading_plan(dag);
  for (size_t first : {0u, 1u}) {
    Bytes bytes(dag, reads);
    std::vector<uint8_t> wanted(dag.size());
    wanted[4] = wanted[5] = 1;
    const auto ended = std::make_shared<EndedTiles>(wanted);
    const Arriving arriving(reads.arrivals(plan), &bytes, [&](const Failure& failure) { ended->close(failure); }, ended);
    CHECK_EQ(ended->take(0.0).size(), 0u);
    CHECK(!ended->error(0.0).has_value());
    bytes.pieces[first] = 1;
    arriving.run->arrived(first);
    const auto early = ended->take(std::nullopt);
    CHECK_EQ(early.size(), 1u);
    CHECK_EQ(early[0], static_cast<int32_t>(4 + first));
    CHECK_EQ(bytes.recording.num_run(), 3u);
    bytes.pieces[1 - first] = 1;
    arriving.run->arrived(1 - first);
    CHECK_EQ(ended->error(std::nullopt).value(), "");
    CHECK_EQ(ended->take(std::nullopt).at(0), static_cast<int32_t>(5 - first));
    CHECK_EQ(ended->take(std::nullopt).size(), 0u);  // over: it does not wait
    bytes.recording.check();
  }
}

TEST(what_does_not_fit_is_refused) {
  const Dag dag = stencil_dag(2, 3);
  const auto plan = reading_plan(dag);
  const auto arrivals = [&](std::vector<int64_t> counts, std::vector<int64_t> tiles) {
    return std::make_shared<const Arrivals>(plan, counts, tiles);
  };
  CHECK_THROWS(arrivals({2}, {0}), "counts");
  CHECK_THROWS(arrivals({-1}, {}), "counts");
  CHECK_THROWS(arrivals({INT64_MAX, INT64_MAX}, {0}), "counts");
  CHECK_THROWS(arrivals({1}, {0, 1}), "add up to 1");
  CHECK_THROWS(arrivals({1}, {6}), "tile 6");
  CHECK_THROWS(arrivals({1}, {-1}), "tile -1");

  const Reads reads{{{0}, {}, {}, {}, {}, {}}, 1};
  Bytes bytes(dag, reads);
  Waiter waiter;
  const Arriving arriving(reads.arrivals(plan), &bytes, waiter.done());
  CHECK_THROWS(arriving.run->arrived(1), "no piece 1");
  CHECK_THROWS(arriving.run->arrived(SIZE_MAX), "no piece");
  bytes.pieces[0] = 1;
  arriving.run->arrived(0);
  CHECK_THROWS(arriving.run->arrived(0), "has arrived already");
  CHECK_EQ(waiter.errors().size(), 0u);
  void* results[] = {nullptr};
  CHECK_THROWS(runtime().start(arrivals({}, {}), {}, results, [](const std::string&) { CHECK(false); }), "0 and 1");
}

TEST(a_run_whose_pieces_never_come_can_be_cancelled) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(4, 6);
  const auto plan = reading_plan(dag);
  Reads reads{std::vector<std::vector<size_t>>(dag.size()), 3};
  for (size_t i = 0; i < 6; ++i) reads.pieces[i] = {i % 3};
  const auto arrivals = reads.arrivals(plan);
  for (size_t there = 0; there <= 3; ++there) {
    Bytes bytes(dag, reads);
    Waiter waiter;
    const Arriving arriving(arrivals, &bytes, waiter.done());
    for (size_t piece = 0; piece < there; ++piece) {
      bytes.pieces[piece] = 1;
      arriving.run->arrived(piece);
    }
    arriving.run->cancel("the peer is gone");
    arriving.run->cancel("again");
    const auto errors = waiter.errors();
    CHECK_EQ(errors.size(), there == 3 ? 0u : 1u);
    if (there == 3) {
      bytes.recording.check();
      continue;
    }
    CHECK_EQ(errors[0], "the peer is gone");
    CHECK(bytes.recording.num_run() < dag.size());
    arriving.run->arrived(there);  // too late, and no error: whoever brings it cannot know
  }
}

TEST(a_watched_run_ends_at_its_next_tile_once_its_pieces_are_there) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(4, 6);
  const auto plan = reading_plan(dag);
  const Reads reads{std::vector<std::vector<size_t>>(dag.size(), {0}), 1};
  for (const int64_t nanoseconds : {int64_t{0}, int64_t{1} << 60}) {
    Bytes bytes(dag, reads);
    Waiter waiter;
    const Arriving arriving(reads.arrivals(plan), &bytes, waiter.done(), nullptr, nullptr,
                            std::make_shared<Watch>(nanoseconds, nullptr));
    bytes.pieces[0] = 1;
    arriving.run->arrived(0);
    const auto errors = waiter.errors();
    CHECK_EQ(errors.size(), nanoseconds == 0 ? 1u : 0u);
    CHECK_EQ(bytes.recording.num_run(), nanoseconds == 0 ? 0u : dag.size());
  }
}

TEST(cancelling_meets_arrivals_of_other_threads) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 5 * kRounds; ++round) {
    runtime().set_num_workers(1 + round % 3);
    const Dag dag = random_dag(random, 6, 12, 3);
    const auto plan = reading_plan(dag);
    const Reads reads = random_reads(random, dag, 12);
    Bytes bytes(dag, reads);
    Waiter waiter;
    const Arriving arriving(reads.arrivals(plan), &bytes, waiter.done());
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (size_t piece = t; piece < 12; piece += 2) {
          bytes.pieces[piece] = 1;
          arriving.run->arrived(piece);
        }
      });
      threads.emplace_back([&] { arriving.run->cancel("stop"); });
    }
    for (auto& thread : threads) thread.join();
    const auto errors = waiter.errors();
    if (errors.empty()) {
      bytes.recording.check();
    } else {
      CHECK_EQ(errors.size(), 1u);
      CHECK_EQ(errors[0], "stop");
    }
  }
}

TEST(a_tile_that_fails_is_not_announced_and_its_run_waits_for_the_pieces) {
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(3, 4);
  const auto plan = failing_plan(dag);
  Reads reads{std::vector<std::vector<size_t>>(dag.size()), 1};
  reads.pieces[11] = {0};
  const auto ended = std::make_shared<EndedTiles>(std::vector<uint8_t>(dag.size(), 1));
  const Arriving arriving(reads.arrivals(plan), nullptr, [&](const Failure& failure) { ended->close(failure); }, ended);
  CHECK(!ended->error(0.01).has_value());
  arriving.run->arrived(0);
  CHECK(ended->error(std::nullopt).value().find("failed: no") != std::string::npos);
  for (const int32_t tile : ended->take(std::nullopt)) CHECK(tile >= 4);
}

TEST(runs_that_wait_for_pieces_keep_no_other_run_from_the_pool) {
  std::mt19937_64 random(3);
  runtime().set_num_workers(2);
  const Dag dag = stencil_dag(3, 4);
  const auto plan = reading_plan(dag, kInPool);
  const Reads reads{std::vector<std::vector<size_t>>(dag.size(), {0}), 1};
  const auto arrivals = reads.arrivals(plan);
  constexpr size_t kRuns = 3 * RunOrder::kSlots;
  std::vector<std::unique_ptr<Bytes>> bytes;
  std::vector<std::unique_ptr<Arriving>> runs;
  std::atomic<size_t> num_errors{0}, num_done{0};
  Waiter waiter;
  for (size_t i = 0; i < kRuns; ++i) {
    bytes.push_back(std::make_unique<Bytes>(dag, reads));
    runs.push_back(std::make_unique<Arriving>(arrivals, bytes.back().get(), [&, done = waiter.done()](const std::string& error) {
      if (!error.empty()) ++num_errors;
      ++num_done;
      done({});
    }));
  }
  const Dag ordinary = stencil_dag(5, 8);
  const auto ordinary_plan = recorded_plan(ordinary, kInPool);
  for (int i = 0; i < 5; ++i) run_and_check(ordinary_plan, ordinary);
  CHECK_EQ(num_done.load(), 0u);
  // Those that are outside may get their pieces before they get in.
  const auto order = shuffled(random, kRuns);
  for (size_t i = 0; i < kRuns; ++i) {
    if (i % 7 == 0) {
      runs[order[i]]->run->cancel("stop");
    } else {
      bytes[order[i]]->pieces[0] = 1;
      runs[order[i]]->run->arrived(0);
    }
  }
  CHECK_EQ(waiter.errors().size(), 0u);
  CHECK_EQ(num_errors.load(), (kRuns + 6) / 7);
  for (size_t i = 0; i < kRuns; ++i) {
    if (i % 7 != 0) bytes[order[i]]->recording.check();
  }
  run_and_check(ordinary_plan, ordinary);
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
