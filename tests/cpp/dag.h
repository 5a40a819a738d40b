// Random task graphs whose tiles check, while they run, that the engine keeps its promises.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "aspen_jax/engine/plan.h"
#include "aspen_jax/engine/runtime.h"
#include "engine_check.h"
#include "graph_builder.h"

namespace aspen::testing {

// A task graph: task i belongs to layer[i], and may depend on tasks of any lower number.
struct Dag {
  std::vector<int> layer;
  std::vector<std::vector<int32_t>> parents;

  size_t size() const { return layer.size(); }

  int add(int at_layer, std::vector<int32_t> its_parents) {
    layer.push_back(at_layer);
    parents.push_back(std::move(its_parents));
    return static_cast<int>(size()) - 1;
  }
};

// Layers of up to `width` tasks, each with up to `max_parents` parents in any earlier layers; some parents occur twice.
inline Dag random_dag(std::mt19937_64& random, int layers, int width, int max_parents) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  Dag dag;
  for (int layer = 0; layer < layers; ++layer) {
    const auto earlier = static_cast<int64_t>(dag.size());
    const int64_t tasks = 1 + below(width);
    for (int64_t i = 0; i < tasks; ++i) {
      std::vector<int32_t> parents;
      // Mostly recent tasks, so that chains and diamonds appear.
      const int64_t window = below(4) == 0 ? earlier : std::min<int64_t>(earlier, 2 * width);
      for (int64_t k = earlier == 0 ? 0 : below(max_parents + 1); k > 0; --k) {
        parents.push_back(static_cast<int32_t>(earlier - 1 - below(window)));
      }
      dag.add(layer, std::move(parents));
    }
  }
  return dag;
}

// Task (t, i) depends on (t - 1, i - 1 .. i + 1).
inline Dag stencil_dag(int steps, int width) {
  Dag dag;
  for (int t = 0; t < steps; ++t) {
    for (int i = 0; i < width; ++i) {
      std::vector<int32_t> parents;
      for (int k = std::max(0, i - 1); t > 0 && k <= std::min(width - 1, i + 1); ++k) parents.push_back((t - 1) * width + k);
      dag.add(t, std::move(parents));
    }
  }
  return dag;
}

// One op a layer, whose output has an element a task, the task's tile. The parameter word of an op is the number of its first
// task. The single operand stands for whatever the test's kernel wants to know; the last layer's output is the result.
inline std::vector<std::byte> encode_dag(const Dag& dag, const std::string& kernel, int64_t tile_cost) {
  GraphBuilder builder;
  const int layers = dag.layer.empty() ? 0 : dag.layer.back() + 1;
  std::vector<int64_t> tasks(static_cast<size_t>(layers)), first(static_cast<size_t>(layers));
  for (size_t i = dag.size(); i-- > 0;) {
    ++tasks[dag.layer[i]];
    first[dag.layer[i]] = static_cast<int64_t>(i);
  }
  const int64_t context = builder.operand(DType::kU8, {1});
  const int64_t result = builder.result(DType::kI64, {tasks.back()});
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t output = layer + 1 == layers ? result : builder.workspace(DType::kI64, {tasks[layer]});
    builder.op("layer" + std::to_string(layer), kernel, {builder.whole(context)}, output, {first[layer]}, layer);
  }
  for (size_t i = 0; i < dag.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) - first[dag.layer[i]];
    builder.tile(dag.layer[i], {at}, {at + 1}, tile_cost);
  }
  for (size_t i = 0; i < dag.size(); ++i) {
    for (const int32_t parent : dag.parents[i]) builder.edge(parent, static_cast<int64_t>(i));
  }
  return builder.encode();
}

// What a run of a Dag writes: each task's value is a hash of its own number and of its parents' values. The values are plain
// memory, so ThreadSanitizer sees every dependency that the engine forgets, and a wrong order gives a wrong value.
class Recording {
 public:
  explicit Recording(const Dag& dag) : dag_(&dag), values_(dag.size()), times_run_(dag.size()) {}

  uint64_t compute(size_t task) const {
    uint64_t hash = 0x9E3779B97F4A7C15u * (task + 1);
    for (const int32_t parent : dag_->parents[task]) hash = (hash ^ values_[parent]) * 0xBF58476D1CE4E5B9u + (hash >> 31);
    return hash | 1;
  }

  void execute(size_t task) {
    values_[task] = compute(task);
    times_run_[task].fetch_add(1, std::memory_order_relaxed);
  }

  // After the run: each task ran once, and after its parents.
  void check() const {
    for (size_t task = 0; task < values_.size(); ++task) {
      CHECK_EQ(times_run_[task].load(std::memory_order_relaxed), 1);
      CHECK_EQ(values_[task], compute(task));
    }
  }

  size_t num_run() const {
    size_t count = 0;
    for (const auto& times : times_run_) count += static_cast<size_t>(times.load(std::memory_order_relaxed));
    return count;
  }

  uint64_t value(size_t task) const { return values_[task]; }

 private:
  const Dag* dag_;
  std::vector<uint64_t> values_;
  std::vector<std::atomic<int>> times_run_;
};

// The operand's address is the Recording's.
class FirstTask : public OpState {
 public:
  explicit FirstTask(int64_t task) : task(task) {}
  int64_t task;
};

template <RunTile run>
PreparedOp prepare_task(const OpSpec& spec) {
  if (spec.params.size() != 1 || spec.inputs.size() != 1) throw GraphError("a task has one parameter and one input");
  if (spec.output.rank != 1 || spec.output.dtype != DType::kI64) throw GraphError("a task writes int64 [n]");
  return {std::make_unique<FirstTask>(spec.params[0]), run, 256};
}

inline const char* run_recorded(const TileArgs& args) noexcept {
  auto& recording = *static_cast<Recording*>(const_cast<void*>(args.inputs[0]));
  const auto task = static_cast<size_t>(static_cast<const FirstTask*>(args.state)->task + args.lo[0]);
  CHECK_EQ(args.hi[0], args.lo[0] + 1);
  CHECK_EQ(reinterpret_cast<uintptr_t>(args.scratch) % 64, 0u);
  for (int i = 0; i < 256; i += 64) args.scratch[i] = std::byte{1};
  recording.execute(task);
  static_cast<int64_t*>(args.output)[args.lo[0]] = static_cast<int64_t>(recording.value(task));
  return nullptr;
}

inline std::shared_ptr<const Plan> make_plan(std::span<const std::byte> bytes, std::span<const Kernel> kernels) {
  KernelRegistry registry;
  registry.add(kernels);
  return std::make_shared<const Plan>(parse_graph(bytes), registry);
}

inline std::shared_ptr<const Plan> recorded_plan(const Dag& dag, int64_t tile_cost) {
  static constexpr Kernel kKernel[] = {{"recorded", prepare_task<run_recorded>}};
  return make_plan(encode_dag(dag, "recorded", tile_cost), kKernel);
}

// Enough for a run not to be small, whatever its number of tiles.
inline constexpr int64_t kInPool = kWakeUpNs;
inline constexpr int64_t kInline = 0;

// Threads of this process whose names begin so.
inline int threads_named(const std::string& begin) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name.starts_with(begin);
  }
  return count;
}

// Waits for runs to be done.
class Waiter {
 public:
  // To be given to one run.
  Done done() {
    const std::lock_guard lock(mutex_);
    ++open_;
    return [this](const std::string& error) {
      const std::lock_guard lock(mutex_);
      if (!error.empty()) errors_.push_back(error);
      CHECK(--open_ >= 0);
      changed_.notify_all();
    };
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
  }

  // Waits; the errors of all runs so far.
  std::vector<std::string> errors() {
    wait();
    const std::lock_guard lock(mutex_);
    return errors_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
  std::vector<std::string> errors_;
};

// A run of a plan made by encode_dag, with a buffer for its result.
struct DagRun {
  explicit DagRun(const Plan& plan) : result(static_cast<size_t>(plan.result(0).dense.shape[0])) {}

  void submit(const std::shared_ptr<const Plan>& plan, const void* context, Done done,
              std::shared_ptr<Observer> observer = nullptr, std::optional<int64_t> run_key = std::nullopt) {
    const void* operands[] = {context};
    void* results[] = {result.data()};
    runtime().submit(plan, operands, results, std::move(done), std::move(observer), run_key);
  }

  std::vector<int64_t> result;
};

// Runs a plan of recorded tasks and checks everything about it.
inline void run_and_check(const std::shared_ptr<const Plan>& plan, const Dag& dag) {
  Recording recording(dag);
  Waiter waiter;
  DagRun run(*plan);
  run.submit(plan, &recording, waiter.done());
  const auto errors = waiter.errors();
  CHECK_EQ(errors.size(), 0u);
  recording.check();
  const size_t first = dag.size() - run.result.size();
  for (size_t i = 0; i < run.result.size(); ++i) CHECK_EQ(run.result[i], static_cast<int64_t>(recording.value(first + i)));
}

}  // namespace aspen::testing
