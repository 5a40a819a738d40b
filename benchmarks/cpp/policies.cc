// Times a graph under scheduling policies, in turns, for policies.py, which also runs this program under valgrind.
//
//   policies GRAPH WORKERS ROUNDS POLICY...
//
// GRAPH is a file that `TileGraph.save` wrote, POLICY a name of engine/policy.h. All operands are zeros: what is computed does
// not matter, where it lies does. For each policy there is a line with the nanoseconds of each round.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "aspen_jax/engine/arena.h"
#include "cpu/target.h"
#include "tests/cpp/dag.h"

namespace aspen {
namespace {

[[noreturn]] void give_up(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

std::vector<std::byte> read_graph(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> all((std::istreambuf_iterator<char>(file)), {});
  uint64_t payload = 0;
  constexpr size_t kHeader = 24, kSizeAt = 16;  // docs/graph_format.md; constants follow
  if (all.size() >= kHeader) std::memcpy(&payload, all.data() + kSizeAt, sizeof payload);
  if (payload == 0 || payload > all.size() - kHeader) give_up(std::string(path) + " is no graph file");
  const auto* const bytes = reinterpret_cast<const std::byte*>(all.data());
  return {bytes, bytes + kHeader + payload};
}

// A plan with buffers for its calls.
class Network {
 public:
  explicit Network(const char* path)
      : plan_(testing::make_plan(read_graph(path), cpu::kernels(cpu::chosen_target()))),
        memory_(plan_->num_operands() + plan_->num_results()) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool is_operand = i < plan_->num_operands();
      const Value& value = is_operand ? plan_->operand(i) : plan_->result(i - plan_->num_operands());
      const auto bytes = static_cast<size_t>(value.bytes);
      if (!memory_[i].grow(bytes)) give_up("out of memory");
      std::fill_n(memory_[i].data(), bytes, std::byte{0});
      is_operand ? operands_.push_back(memory_[i].data()) : results_.push_back(memory_[i].data());
    }
  }

  void run() const {
    testing::Waiter waiter;
    runtime().submit(plan_, operands_, results_, waiter.done());
    for (const std::string& error : waiter.errors()) give_up(error);
  }

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<Arena> memory_;
  std::vector<const void*> operands_;
  mutable std::vector<void*> results_;
};

void measure(const Network& network, int rounds, const std::vector<const Policy*>& policies) {
  std::vector<std::vector<int64_t>> times(policies.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < policies.size(); ++i) {
      runtime().set_policy(*policies[i]);
      const auto begin = std::chrono::steady_clock::now();
      network.run();
      times[i].push_back(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
    }
  }
  for (const auto& row : times) {
    for (const int64_t time : row) std::printf("%lld ", static_cast<long long>(time));
    std::printf("\n");
  }
}

}  // namespace
}  // namespace aspen

int main(int argc, char** argv) {
  const int workers = argc > 2 ? std::atoi(argv[2]) : 0, rounds = argc > 3 ? std::atoi(argv[3]) : 0;
  std::vector<const aspen::Policy*> policies;
  for (int i = 4; i < argc; ++i) policies.push_back(aspen::policy_named(argv[i]));
  if (workers < 1 || rounds < 1 || policies.empty() || std::ranges::count(policies, nullptr) > 0) {
    aspen::give_up("usage: policies GRAPH WORKERS ROUNDS POLICY..., where policies are: " + aspen::policy_names());
  }
  aspen::runtime().set_num_workers(workers);
  aspen::measure(aspen::Network(argv[1]), rounds, policies);
}
