// Feeds mutated graph files to the engine: whatever the bytes, the answer is a Plan or a GraphError, and a Plan can be run.
//
// Run under AddressSanitizer and UndefinedBehaviorSanitizer. The checksum of every mutant is right, so that mutations get past
// it. Where kernels write all of their output, what a run gives must not depend on what lay in the memory of its results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "aspen_jax/engine/plan.h"
#include "aspen_jax/engine/registry.h"
#include "aspen_jax/engine/runtime.h"
#include "dag.h"
#include "engine_check.h"
#include "graph_builder.h"

namespace aspen::testing {

using Bytes = std::vector<std::byte>;

// Back from the bytes of a valid graph to its arrays.
inline Arrays decode(const Bytes& bytes) {
  Arrays arrays;
  size_t at = 24;
  const auto varint = [&] {
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
      CHECK(at < bytes.size());
      const auto byte = static_cast<uint64_t>(bytes[at++]);
      number |= (byte & 127) << shift;
      if (byte < 128) return number;
    }
  };
  for (size_t i = 0; i < Arrays::kCount; ++i) {
    Words& array = arrays.array[i];
    array.resize(varint());
    const uint64_t lag = varint();
    arrays.lag[i] = static_cast<int64_t>(lag);
    for (size_t k = 0; k < array.size(); ++k) {
      const uint64_t zigzag = varint();
      const uint64_t difference = (zigzag >> 1) ^ (zigzag & 1 ? ~uint64_t{0} : 0);
      array[k] = static_cast<int64_t>(difference + (lag > 0 && k >= lag ? static_cast<uint64_t>(array[k - lag]) : 0));
    }
  }
  return arrays;
}

class Fuzzer {
 public:
  Fuzzer(std::vector<Bytes> seeds, const KernelRegistry& registry, bool fills_outputs, uint64_t seed)
      : seeds_(std::move(seeds)), registry_(registry), fills_outputs_(fills_outputs), random_(seed) {
    for (const Bytes& bytes : seeds_) CHECK(try_graph(bytes));
    seeds_run_ = ran_;
    accepted_ = ran_ = 0;
  }

  void round() {
    const Bytes& original = seeds_[below(seeds_.size())];
    Bytes bytes;
    if (below(3) == 0) {
      Bytes payload(original.begin() + 24, original.end());
      for (size_t times = 1 + below(4); times > 0; --times) mutate_payload(payload);
      bytes = GraphBuilder::seal(payload);
    } else {
      Arrays arrays = decode(original);
      for (size_t times = 1 + below(3); times > 0; --times) mutate_arrays(arrays);
      bytes = GraphBuilder::encode(arrays);
    }
    // Now and then the envelope itself.
    if (below(50) == 0) bytes[below(std::min<size_t>(24, bytes.size()))] ^= static_cast<std::byte>(1 << below(8));
    ++tried_;
    try_graph(bytes);
  }

  void report() const {
    std::printf("%zu mutants: %zu accepted, %zu of them run; %zu kinds of refusal\n", tried_, accepted_, ran_, refusals_.size());
  }

  size_t seeds_run() const { return seeds_run_; }
  size_t accepted() const { return accepted_; }
  size_t kinds_of_refusal() const { return refusals_.size(); }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }

  int64_t interesting(const Words& array) {
    switch (below(9)) {
      case 0:
        return 0;
      case 1:
        return -1;
      case 2:
        return static_cast<int64_t>(below(12));
      case 3:
        return int64_t{1} << below(63);
      case 4:
        return (int64_t{1} << below(63)) - 1;
      case 5:
        return -(int64_t{1} << below(63));
      case 6:
        return static_cast<int64_t>(random_());
      case 7:
        return below(2) == 0 ? INT64_MAX : INT64_MIN;
      default:
        return array.empty() ? 1 : array[below(array.size())];
    }
  }

  void mutate_arrays(Arrays& arrays) {
    if (below(20) == 0) {  // no tile waits for another
      std::ranges::fill(arrays.array[11], 0);
      arrays.array[12].clear();
      return;
    }
    Words& array = arrays.array[below(Arrays::kCount)];
    const size_t at = below(array.size() + 1);
    const auto place = array.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(8)) {
      case 0:
        array.insert(place, interesting(array));
        break;
      case 1:
        if (place != array.end()) array.erase(place);
        break;
      case 2:
        array.resize(at);
        break;
      case 3:
        if (!array.empty()) std::swap(array[below(array.size())], array[below(array.size())]);
        break;
      case 4:
        if (place != array.end()) *place = interesting(array);
        break;
      default:
        if (place != array.end())
          *place = static_cast<int64_t>(static_cast<uint64_t>(*place) + (below(2) == 0 ? 1 : ~uint64_t{0}));
    }
  }

  void mutate_payload(Bytes& payload) {
    if (payload.empty()) return;
    const size_t at = below(payload.size());
    const auto place = payload.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        *place ^= static_cast<std::byte>(1 << below(8));
        break;
      case 1:
        *place = static_cast<std::byte>(below(256));
        break;
      case 2:
        payload.resize(at);
        break;
      case 3:
        payload.insert(place, 1 + below(10), below(2) == 0 ? std::byte{0xFF} : std::byte{0x80});
        break;
      case 4:
        payload.erase(place, place + static_cast<std::ptrdiff_t>(std::min(payload.size() - at, 1 + below(20))));
        break;
      default: {  // a piece of this or another graph
        const Bytes& other = seeds_[below(seeds_.size())];
        const size_t from = 24 + below(other.size() - 24), size = std::min(other.size() - from, 1 + below(40));
        const auto piece = other.begin() + static_cast<std::ptrdiff_t>(from);
        if (below(2) == 0) {
          payload.insert(place, piece, piece + static_cast<std::ptrdiff_t>(size));
        } else {
          std::copy_n(piece, std::min(size, payload.size() - at), place);
        }
      }
    }
  }

  // True if it is accepted.
  bool try_graph(const Bytes& bytes) {
    // A buffer of exactly this size, so that reading past its end is seen.
    const std::vector<std::byte> exact(bytes.begin(), bytes.end());
    std::shared_ptr<const Plan> plan;
    try {
      plan = std::make_shared<const Plan>(parse_graph(exact), registry_);
    } catch (const GraphError& error) {
      // Kinds of messages, without their numbers.
      std::string kind = error.what();
      std::erase_if(kind, [](char c) { return (c >= '0' && c <= '9') || c == '-'; });
      CHECK(!kind.empty());
      if (!std::binary_search(refusals_.begin(), refusals_.end(), kind)) {
        refusals_.insert(std::upper_bound(refusals_.begin(), refusals_.end(), kind), kind);
      }
      return false;
    }
    ++accepted_;
    const uint64_t operands = random_();
    if (const auto results = run(plan, operands, std::byte{0x5A})) {
      ++ran_;
      // The caller's thread walks the tiles of a small graph in the same order again, in a workspace that is new too.
      if (fills_outputs_ && plan->total_cost() < kWakeUpNs) {
        plan.reset();
        plan = std::make_shared<const Plan>(parse_graph(exact), registry_);
        CHECK(run(plan, operands, std::byte{0xA5}) == results);
      }
    }
    return true;
  }

  // The results, in buffers of exactly the sizes that the plan says, which hold `filling` before; none of a run that fails or
  // would be too much work.
  std::optional<std::vector<Bytes>> run(const std::shared_ptr<const Plan>& plan, uint64_t seed, std::byte filling) {
    const Graph& graph = plan->graph();
    double work = static_cast<double>(graph.workspace_bytes) + static_cast<double>(plan->scratch_bytes());
    for (const Value& value : graph.values) work += static_cast<double>(value.bytes);
    for (const Op& op : graph.ops) {
      double reads = 1;
      for (const Input& input : graph.inputs_of(op)) {
        double size = 1;
        for (int d = 0; d < input.view.rank; ++d) size *= static_cast<double>(input.view.shape[d]);
        reads += size;
      }
      work += static_cast<double>(graph.values[op.output].bytes) * reads;
    }
    if (work > 3e9) return std::nullopt;  // many times what the kernels do, most of which read far less than all for each element
    std::mt19937_64 random(seed);
    std::vector<Bytes> given, written;
    std::vector<const void*> operands;
    std::vector<void*> results;
    for (size_t i = 0; i < plan->num_operands(); ++i) {
      given.emplace_back(static_cast<size_t>(plan->operand(i).bytes));
      for (auto& byte : given.back()) byte = static_cast<std::byte>(random() & 1);
      operands.push_back(given.back().data());
    }
    for (size_t i = 0; i < plan->num_results(); ++i) {
      written.emplace_back(static_cast<size_t>(plan->result(i).bytes), filling);
      results.push_back(written.back().data());
    }
    Waiter waiter;
    runtime().submit(plan, operands, results, waiter.done());
    // What a run that failed left out is as it was.
    if (!waiter.errors().empty()) return std::nullopt;
    return written;
  }

  std::vector<Bytes> seeds_;
  const KernelRegistry& registry_;
  bool fills_outputs_;
  std::mt19937_64 random_;
  size_t seeds_run_ = 0, tried_ = 0, accepted_ = 0, ran_ = 0;
  std::vector<std::string> refusals_;  // sorted
};

inline Bytes read_bytes(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file || text.size() <= 24) fail(path, 0, "no graph file");
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// fuzz [rounds] [seed] [graph files ...]: the files are added to the graphs given.
inline int fuzz_main(int argc, char** argv, std::vector<Bytes> seeds, const KernelRegistry& registry, bool fills_outputs) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 100000;
  const auto seed = static_cast<uint64_t>(argc > 2 ? std::atol(argv[2]) : 1);
  const size_t small = seeds.size();
  for (int i = 3; i < argc; ++i) seeds.push_back(read_bytes(argv[i]));
  runtime().set_num_workers(2);
  Fuzzer fuzzer(std::move(seeds), registry, fills_outputs, seed);
  CHECK(fuzzer.seeds_run() >= small);  // without an error, or mutants of some are hardly ever run
  for (long i = 0; i < rounds; ++i) fuzzer.round();
  fuzzer.report();
  // Mutants that are all refused, or all for the same reason, would test nothing.
  if (rounds >= 10000) CHECK(fuzzer.accepted() > 100 && fuzzer.kinds_of_refusal() > 100);
  return 0;
}

}  // namespace aspen::testing
