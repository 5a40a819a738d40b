// Graphs on the fake of CUDA's driver, from many threads at once. Python's tests/test_cuda_runtime.py has real kernels and
// faults.
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "cuda/executable.h"
#include "cuda/standalone.h"
#include "dag.h"
#include "engine_check.h"
#include "graph_builder.h"

extern "C" int fake_cuda_live();
extern "C" int fake_cuda_current();

namespace aspen::testing {
namespace {

using cuda::Code;
using cuda::DevicePointer;
using cuda::Driver;
using cuda::Executable;
using cuda::Executor;
using cuda::Stream;

constexpr int64_t kTiles = 40, kWidth = 3, kElements = kTiles * kWidth;

std::vector<std::byte> fake_image() {
  std::ifstream file(ASPEN_FAKE_IMAGE, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  CHECK(!bytes.empty());
  const auto* const data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

// Each op adds two earlier values; the result copies the last. It is terms[0] times the first operand and terms[1] times the
// other.
struct Sums {
  Graph graph;
  std::vector<int32_t> kernels;
  std::pair<float, float> terms;  // below 2^24, so that float counts them
};

Sums sums(uint64_t seed, int num_ops) {
  std::mt19937_64 random(seed);
  GraphBuilder builder;
  std::vector<int64_t> values{builder.operand(DType::kF32, {kElements}), builder.operand(DType::kF32, {kElements})};
  const int64_t result = builder.result(DType::kF32, {kElements});
  std::vector<std::pair<float, float>> terms{{1, 0}, {0, 1}};
  std::vector<int64_t> op_of{-1, -1};
  std::vector<int32_t> kernels;
  const auto tiles_after = [&](int64_t op, const std::vector<int64_t>& parents) {
    for (int64_t tile = 0; tile < kTiles; ++tile) {
      const int64_t number = builder.tile(op, {tile * kWidth}, {tile * kWidth + kWidth});
      for (const int64_t parent : parents) {
        if (parent >= 0) builder.edge(parent * kTiles + tile, number);
      }
    }
  };
  for (int k = 0; k < num_ops; ++k) {
    const auto pick = [&] { return values.size() - 1 - random() % std::min<size_t>(values.size(), 4); };
    const size_t a = pick(), b = pick();
    values.push_back(builder.workspace(DType::kF32, {kElements}));
    op_of.push_back(builder.op("sum", "any", {builder.whole(values[a]), builder.whole(values[b])}, values.back(), {}, k));
    tiles_after(op_of.back(), {op_of[a], op_of[b]});
    terms.emplace_back(terms[a].first + terms[b].first, terms[a].second + terms[b].second);
    kernels.push_back(0);
  }
  tiles_after(builder.op("copy", "any", {builder.whole(values.back())}, result, {}, num_ops), {op_of.back()});
  kernels.push_back(1);
  return {parse_graph(builder.encode()), kernels, terms.back()};
}

// Memory and a stream of one caller, as XLA would have them.
class Caller {
 public:
  Caller(const Driver& driver, const Graph& graph, float a, float b) : driver_(driver) {
    CHECK_EQ(driver_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking), cuda::kSuccess);
    for (const size_t bytes : {kBytes, kBytes, kBytes, static_cast<size_t>(graph.workspace_bytes)}) {
      buffers_.push_back(0);
      CHECK_EQ(driver_.cuMemAlloc(&buffers_.back(), bytes), cuda::kSuccess);
    }
    for (const size_t i : {0u, 1u}) {
      const std::vector<float> filled(kElements, i == 0 ? a : b);
      CHECK_EQ(driver_.cuMemcpyHtoD(buffers_[i], filled.data(), kBytes), cuda::kSuccess);
    }
  }
  ~Caller() {
    for (const DevicePointer buffer : buffers_) driver_.cuMemFree(buffer);
    driver_.cuStreamDestroy(stream_);
  }

  void run(Executable& executable) {
    CHECK_EQ(driver_.cuMemsetD8(buffers_[2], 0xff, kBytes), cuda::kSuccess);
    executable.run(stream_, buffers_);
  }
  void check(float expected) {
    CHECK_EQ(driver_.cuStreamSynchronize(stream_), cuda::kSuccess);
    std::vector<float> result(kElements);
    CHECK_EQ(driver_.cuMemcpyDtoH(result.data(), buffers_[2], kBytes), cuda::kSuccess);
    for (const float value : result) CHECK_EQ(value, expected);
  }

 private:
  static constexpr size_t kBytes = kElements * sizeof(float);
  const Driver& driver_;
  Stream stream_ = nullptr;
  std::vector<DevicePointer> buffers_;
};

TEST(threads_share_an_executable) {
  const Driver& driver = Driver::get();
  for (const Executor executor : {Executor::kStream, Executor::kGraph}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Sums example = sums(seed, 20);
      const auto executable = std::make_unique<Executable>(example.graph, Code{fake_image(), example.kernels}, executor);
      std::vector<std::thread> threads;
      for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
          const auto a = static_cast<float>(thread % 2), b = static_cast<float>(thread / 2);
          Caller caller(driver, example.graph, a, b);
          for (int i = 0; i < 10; ++i) {
            caller.run(*executable);
            if (i % 3 == 0) caller.check(a * example.terms.first + b * example.terms.second);
          }
          caller.check(a * example.terms.first + b * example.terms.second);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    CHECK_EQ(fake_cuda_live(), 0);
    CHECK_EQ(fake_cuda_current(), 0);
  }
}

TEST(an_executable_may_end_while_the_device_is_busy) {
  const Driver& driver = Driver::get();
  for (const Executor executor : {Executor::kStream, Executor::kGraph}) {
    Sums example = sums(7, 12);
    Caller caller(driver, example.graph, 1, 2);
    {
      Executable executable(example.graph, Code{fake_image(), example.kernels}, executor);
      caller.run(executable);
    }
    caller.check(example.terms.first + 2 * example.terms.second);
  }
}

TEST(waiting_for_the_nearest_parents_is_waiting_for_all) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph = parse_graph(encode_dag(random_dag(random, 10, 12, 5), "any", 0));
    const cuda::LaunchGraph launches = cuda::group_tiles(graph, 1 + static_cast<uint32_t>(seed % 3));
    const auto nearest = cuda::nearest_parents(launches);
    std::vector<std::set<uint32_t>> all(launches.size()), by_nearest(launches.size());
    for (uint32_t launch = 0; launch < launches.size(); ++launch) {
      for (const uint32_t parent : launches.parents_of(launch)) {
        all[launch].insert(parent);
        all[launch].insert(all[parent].begin(), all[parent].end());
      }
      for (const uint32_t parent : nearest[launch]) {
        // None is implied by another.
        for (const uint32_t other : nearest[launch]) CHECK(other == parent || !all[other].contains(parent));
        by_nearest[launch].insert(parent);
        by_nearest[launch].insert(by_nearest[parent].begin(), by_nearest[parent].end());
      }
      CHECK(all[launch] == by_nearest[launch]);
    }
  }
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
