// Graphs on the fake of CUDA's driver, by many threads at once. In Python, tests/targets/cuda/test_cuda_runtime.py has real
// kernels and faults.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/executable.h"
#include "cuda/owned.h"
#include "cuda/replay_graph.h"
#include "cuda/standalone.h"
#include "dag.h"
#include "engine_check.h"
#include "graph_builder.h"

extern "C" int fake_cuda_live();
extern "C" int fake_cuda_current();
extern "C" int fake_cuda_count(const char* name);
extern "C" void fake_cuda_seed(unsigned seed);
extern "C" void fake_cuda_fail(const char* name, int countdown, int failure);

namespace aspen::testing {
namespace {

using cuda::Code;
using cuda::DevicePointer;
using cuda::Driver;
using cuda::Executable;
using cuda::Executor;
using cuda::Stream;

constexpr int64_t kTiles = 40, kWidth = 3, kElements = kTiles * kWidth;

std::vector<std::byte> fake_image(const char* path = ASPEN_IMAGE_WAITS) {
  std::ifstream file(path, std::ios::binary);
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

// Memory and a stream of one caller, as XLA would have them. Without a workspace, which most runs must not need.
class Caller {
 public:
  Caller(const Driver& driver, float a, float b, int64_t workspace_bytes = 0) : driver_(driver), operands_{a, b} {
    CHECK_EQ(driver_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking), cuda::kSuccess);
    for (const size_t bytes : {kBytes, kBytes, kBytes}) buffers_.push_back(take(bytes));
    buffers_.push_back(workspace_bytes == 0 ? 0 : take(static_cast<size_t>(workspace_bytes)));
    for (const size_t i : {0u, 1u}) fill(i);
  }
  ~Caller() {
    for (const DevicePointer buffer : taken_) driver_.cuMemFree(buffer);
    driver_.cuStreamDestroy(stream_);
  }

  // An operand comes to lie where the caller had none before. Gives its old place.
  DevicePointer move(size_t operand) {
    const DevicePointer place = std::exchange(buffers_[operand], take(kBytes));
    fill(operand);
    return place;
  }
  // Nobody may read there any more.
  void spoil(DevicePointer place) { CHECK_EQ(driver_.cuMemsetD8(place, 0xff, kBytes), cuda::kSuccess); }
  DevicePointer& operand(size_t number) { return buffers_[number]; }
  Stream stream() const { return stream_; }

  void run(Executable& executable) {
    CHECK_EQ(driver_.cuMemsetD8(buffers_[2], 0xff, kBytes), cuda::kSuccess);
    executable.run(stream_, buffers_);
  }
  bool is_right(const Sums& sums) {
    CHECK_EQ(driver_.cuStreamSynchronize(stream_), cuda::kSuccess);
    std::vector<float> result(kElements);
    CHECK_EQ(driver_.cuMemcpyDtoH(result.data(), buffers_[2], kBytes), cuda::kSuccess);
    const float expected = operands_[0] * sums.terms.first + operands_[1] * sums.terms.second;
    return std::ranges::all_of(result, [&](float value) { return value == expected; });
  }
  void check(const Sums& sums) { CHECK(is_right(sums)); }

 private:
  static constexpr size_t kBytes = kElements * sizeof(float);

  DevicePointer take(size_t bytes) {
    taken_.push_back(0);
    CHECK_EQ(driver_.cuMemAlloc(&taken_.back(), bytes), cuda::kSuccess);
    return taken_.back();
  }
  void fill(size_t operand) {
    const std::vector<float> filled(kElements, operands_[operand]);
    CHECK_EQ(driver_.cuMemcpyHtoD(buffers_[operand], filled.data(), kBytes), cuda::kSuccess);
  }

  const Driver& driver_;
  const float operands_[2];
  Stream stream_ = nullptr;
  std::vector<DevicePointer> taken_;
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
          Caller caller(driver, static_cast<float>(thread % 2), static_cast<float>(thread / 2));
          for (int i = 0; i < 10; ++i) {
            caller.run(*executable);
            if (i % 3 == 0) caller.check(example);
          }
          caller.check(example);
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
    Caller caller(driver, 1, 2);
    {
      Executable executable(example.graph, Code{fake_image(), example.kernels}, executor);
      caller.run(executable);
    }
    caller.check(example);
  }
}

TEST(what_was_in_a_context_that_is_gone_is_not_given_back) {
  const Driver& driver = Driver::get();
  cuda::Context context = nullptr;
  CHECK_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), cuda::kSuccess);
  for (const bool is_gone : {false, true}) {
    const int before = fake_cuda_count("cuEventDestroy");
    cuda::Event event = nullptr;
    {
      cuda::HomeContext home(driver, context);
      cuda::Owned<&Driver::cuEventDestroy> owned(home);
      CHECK_EQ(owned.take(driver.cuEventCreate, cuda::kEventDisableTiming), cuda::kSuccess);
      event = owned.get();
      if (is_gone) fake_cuda_fail("cuCtxPushCurrent", 0, 709);
      home.close();
      CHECK_EQ(fake_cuda_current(), is_gone ? 0 : 1);
    }
    CHECK_EQ(fake_cuda_count("cuEventDestroy") - before, is_gone ? 0 : 1);
    CHECK_EQ(fake_cuda_current(), 0);
    if (is_gone) driver.cuEventDestroy(event);
  }
  driver.cuDevicePrimaryCtxRelease(0);
  CHECK_EQ(fake_cuda_live(), 0);
}

TEST(runs_on_several_streams_do_not_meet_in_the_workspace) {
  const Driver& driver = Driver::get();
  for (const Executor executor : {Executor::kStream, Executor::kGraph}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      fake_cuda_seed(static_cast<unsigned>(seed));
      Sums example = sums(seed, 12);
      Executable executable(example.graph, Code{fake_image(), example.kernels}, executor);
      Caller one(driver, 1, 2), other(driver, 3, 5);
      for (int i = 0; i < 2; ++i) {
        for (Caller* const caller : {&one, &other}) caller->run(executable);
      }
      one.check(example);
      other.check(example);
    }
  }
}

// How many of a graph's launches, which are its ops here, read one of these buffers.
int readers(const Graph& graph, const std::set<int32_t>& buffers) {
  const auto is_read = [&](const Input& input) {
    return buffers.contains(graph.values[static_cast<size_t>(input.value)].buffer);
  };
  return static_cast<int>(
      std::ranges::count_if(graph.ops, [&](const Op& op) { return std::ranges::any_of(graph.inputs_of(op), is_read); }));
}

// What a run of a CUDA graph has cost since the counts were taken.
struct Cost {
  int instances = fake_cuda_count("cuGraphInstantiate");
  int uploads = fake_cuda_count("cuGraphUpload");
  int nodes = fake_cuda_count("cuGraphExecKernelNodeSetParams");
};
void check_cost(const Cost& before, int instances, int uploads, int nodes) {
  const Cost now;
  CHECK_EQ(now.instances - before.instances, instances);
  CHECK_EQ(now.uploads - before.uploads, uploads);
  CHECK_EQ(now.nodes - before.nodes, nodes);
}

TEST(only_what_has_moved_is_given_to_the_device_again) {
  const Driver& driver = Driver::get();
  int num_examples = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Sums example = sums(seed, 12);
    const int reads_first = readers(example.graph, {0}), reads_second = readers(example.graph, {1});
    if (reads_first == 0 || reads_second == 0) continue;
    ++num_examples;
    Executable executable(example.graph, Code{fake_image(), example.kernels}, Executor::kGraph);
    Caller caller(driver, 2, 3);
    const auto run = [&](int instances, int nodes) {
      const Cost before;
      caller.run(executable);
      check_cost(before, instances, instances, nodes);
      caller.check(example);
    };
    run(1, 0);
    run(0, 0);
    // Two places of an operand in turn, as an allocator gives them.
    const DevicePointer first = caller.operand(0);
    caller.move(0);
    const DevicePointer second = caller.operand(0);
    run(1, reads_first);
    for (const DevicePointer place : {first, second, first}) {
      caller.operand(0) = place;
      run(0, 0);
    }
    // Places that never come again.
    caller.move(1);
    run(1, reads_second);
    caller.move(1);
    run(1, reads_second);
    // From here on the instance that was used longest ago changes. It has `second` and the operand that was first.
    caller.move(1);
    run(0, readers(example.graph, {0, 1}));
    run(0, 0);
  }
  CHECK(num_examples > 5);
  CHECK_EQ(fake_cuda_live(), 0);
}

TEST(nodes_that_were_half_set_are_not_used) {
  const Driver& driver = Driver::get();
  Sums example = sums(0, 12);
  for (uint64_t seed = 1; readers(example.graph, {0, 1}) < 2; ++seed) example = sums(seed, 12);
  {
    Executable executable(example.graph, Code{fake_image(), example.kernels}, Executor::kGraph);
    Caller caller(driver, 2, 3);
    for (size_t i = 0; i < 2 * cuda::ReplayGraph::kMostInstances; ++i) {  // new instances, then some that were used
      caller.run(executable);
      caller.check(example);
      for (const size_t operand : {0u, 1u}) caller.spoil(caller.move(operand));
      fake_cuda_fail("cuGraphExecKernelNodeSetParams", 1, 719);
      CHECK_THROWS(caller.run(executable), "cuGraphExecKernelNodeSetParams for tiles ");
      caller.run(executable);
      caller.check(example);
    }
  }
  CHECK_EQ(fake_cuda_live(), 0);
}

TEST(a_captured_run_has_a_workspace_of_its_own) {
  const Driver& driver = Driver::get();
  for (const Executor executor : {Executor::kStream, Executor::kGraph}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      fake_cuda_seed(static_cast<unsigned>(seed));
      Sums example = sums(seed, 12);
      Executable executable(example.graph, Code{fake_image(), example.kernels}, executor);
      Caller captured(driver, 1, 2, example.graph.workspace_bytes), direct(driver, 3, 5);
      executable.load(captured.stream());
      CHECK_EQ(driver.cuStreamBeginCapture(captured.stream(), cuda::kCaptureOnlyThisThread), cuda::kSuccess);
      captured.run(executable);
      cuda::DeviceGraph graph = nullptr;
      CHECK_EQ(driver.cuStreamEndCapture(captured.stream(), &graph), cuda::kSuccess);
      cuda::GraphExec exec = nullptr;
      CHECK_EQ(driver.cuGraphInstantiate(&exec, graph, 0), cuda::kSuccess);
      // Nothing orders these.
      CHECK_EQ(driver.cuGraphLaunch(exec, captured.stream()), cuda::kSuccess);
      direct.run(executable);
      captured.check(example);
      direct.check(example);
      driver.cuGraphExecDestroy(exec);
      driver.cuGraphDestroy(graph);
    }
    CHECK_EQ(fake_cuda_live(), 0);
  }
}

// Runs of a graph on the fake, by code that waits and code that does not; whether all were right.
bool are_right(const char* image) {
  const Driver& driver = Driver::get();
  bool all = true;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    fake_cuda_seed(static_cast<unsigned>(seed));
    Sums example = sums(seed, 12);
    Executable executable(example.graph, Code{fake_image(image), example.kernels}, Executor::kGraph);
    Caller caller(driver, 2, 3);
    caller.run(executable);
    all = caller.is_right(example) && all;
  }
  CHECK_EQ(fake_cuda_live(), 0);
  return all;
}

TEST(launches_start_early_only_where_kernels_wait) {
  const auto early = [] { return fake_cuda_count("cuGraphAddDependencies"); };
  int before = early();
  CHECK(are_right(ASPEN_IMAGE_WAITS));
  CHECK_EQ(early() - before, 20);
  before = early();
  CHECK(are_right(ASPEN_IMAGE_PLAIN));
  CHECK_EQ(early() - before, 0);
  CHECK(!are_right(ASPEN_IMAGE_FORGETS));  // the fake would see it

  before = early();
  setenv("ASPEN_CUDA_PROGRAMMATIC", "off", 1);
  CHECK(are_right(ASPEN_IMAGE_WAITS));
  CHECK(are_right(ASPEN_IMAGE_FORGETS));
  CHECK_EQ(early() - before, 0);
  setenv("ASPEN_CUDA_PROGRAMMATIC", "always", 1);
  CHECK_THROWS(are_right(ASPEN_IMAGE_WAITS), "ASPEN_CUDA_PROGRAMMATIC='always' is no choice; set it to 'on' or 'off'");
  unsetenv("ASPEN_CUDA_PROGRAMMATIC");
  CHECK_EQ(fake_cuda_live(), 0);
}

TEST(a_driver_that_refuses_early_starts_says_how_to_do_without) {
  Sums example = sums(1, 12);
  {
    Executable executable(example.graph, Code{fake_image(), example.kernels}, Executor::kGraph);
    Caller caller(Driver::get(), 2, 3);
    for (const char* const call : {"cuGraphAddDependencies", "cuGraphInstantiate"}) {
      fake_cuda_fail(call, 0, 801);
      CHECK_THROWS(caller.run(executable), "; set ASPEN_CUDA_PROGRAMMATIC=off");
    }
    caller.run(executable);
    caller.check(example);
  }
  CHECK_EQ(fake_cuda_live(), 0);
}

TEST(a_large_workspace_is_the_callers) {
  const Driver& driver = Driver::get();
  for (const Executor executor : {Executor::kStream, Executor::kGraph}) {
    Sums example = sums(3, 12);
    CHECK(Executable(example.graph, Code{fake_image(), example.kernels}, executor).keeps_workspace());
    example.graph.workspace_bytes = cuda::kLargestKeptWorkspace + 1;
    Executable executable(example.graph, Code{fake_image(), example.kernels}, executor);
    CHECK(!executable.keeps_workspace());
    Caller one(driver, 1, 2, example.graph.workspace_bytes), other(driver, 3, 5, example.graph.workspace_bytes);
    for (Caller* const caller : {&one, &other, &one}) caller->run(executable);
    one.check(example);
    other.check(example);
  }
  CHECK_EQ(fake_cuda_live(), 0);
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
