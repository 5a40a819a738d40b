#include "run_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace aspen {

RunState::RunState(const Plan& plan)
    : Traversal(plan.tiles(), plan.graph().children.data(), plan.graph().ops.size()),
      plan_(plan),
      ops_(plan.graph().ops.size()),
      inputs_(plan.graph().inputs.size()),
      further_(plan.graph().further.size()) {
  const Graph& graph = plan.graph();
  if (!workspace_.grow(plan.memory_bytes())) throw std::bad_alloc();
  // A graph from a stranger may lack edges, and a tile then read what no tile has written: not what others left in this memory.
  std::fill_n(workspace_.data(), static_cast<size_t>(graph.workspace_bytes), std::byte{0});
  for (size_t i = 0; i < ops_.size(); ++i) {
    const PreparedOp& prepared = plan.prepared()[i];
    ops_[i] = {prepared.run,
               prepared.state.get(),
               inputs_.data() + graph.ops[i].first_input,
               nullptr,
               further_.data() + graph.ops[i].first_further,
               nullptr,
               graph.values[graph.ops[i].output].dense.rank};
  }
  for (const auto& [op, begin] : plan.kept()) ops_[op].kept = workspace_.data() + begin;
}

void RunState::start(Call call, std::span<const void* const> operands, std::span<void* const> results) noexcept {
  const Graph& graph = plan_.graph();
  const int32_t workspace = graph.workspace();
  const auto writable = [&](const Place& place) -> std::byte* {
    if (place.buffer == workspace) return workspace_.data() + place.offset;
    return static_cast<std::byte*>(results[static_cast<size_t>(place.buffer) - operands.size()]) + place.offset;
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Place& place = plan_.inputs()[i];
    const auto buffer = static_cast<size_t>(place.buffer);
    inputs_[i] = buffer < operands.size() ? static_cast<const std::byte*>(operands[buffer]) + place.offset : writable(place);
  }
  for (size_t i = 0; i < ops_.size(); ++i) ops_[i].output = writable(plan_.outputs()[i]);
  for (size_t i = 0; i < further_.size(); ++i) further_[i] = writable(plan_.further()[i]);
  for (const auto& [op, begin] : plan_.kept()) std::memset(ops_[op].kept, 0, sizeof(uint64_t));  // the last run may have failed
  // As for the workspace: a stranger's graph may read them first. What an operand shares with a result is the caller's to see,
  // and where only some tiles run, all results hold what was there.
  for (const uint32_t result : plan_.results_to_clear()) {
    if (call.selection != nullptr || std::ranges::find(operands, results[result]) != operands.end()) continue;
    std::memset(results[result], 0, static_cast<size_t>(plan_.result(result).bytes));
  }
  // A run has arrivals or a selection, if either.
  const Arrivals* const arrivals = call.arrivals.get();
  const std::span<const uint32_t> parents = arrivals != nullptr         ? arrivals->parents()
                                            : call.selection != nullptr ? std::span<const uint32_t>(call.selection->parents)
                                                                        : std::span<const uint32_t>(graph.parents);
  restart(*call.policy, parents, [&](size_t op) { return graph.ops[op].depth; }, graph.max_depth);
  call_ = std::move(call);
  course_.store(call_.watch == nullptr ? Course::kFree : Course::kWatched, std::memory_order_relaxed);
  const size_t pieces = arrivals == nullptr ? 0 : arrivals->num_pieces() + 1;  // and the entry
  tiles_left_.store(static_cast<int64_t>(num_tiles() + pieces), std::memory_order_relaxed);
}

RunStateCache::~RunStateCache() {
  for (auto& slot : slots_) std::unique_ptr<RunState>(slot.load(std::memory_order_acquire)).reset();
}

std::unique_ptr<RunState> RunStateCache::take(const Plan& plan) {
  for (auto& slot : slots_) {
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    // acquire, with the release in `keep`: the last run's writes to the state come before ours.
    if (RunState* state = slot.exchange(nullptr, std::memory_order_acquire)) return std::unique_ptr<RunState>(state);
  }
  return std::make_unique<RunState>(plan);
}

void RunStateCache::keep(std::unique_ptr<RunState> state) noexcept {
  for (auto& slot : slots_) {
    RunState* empty = nullptr;
    if (slot.compare_exchange_strong(empty, state.get(), std::memory_order_release, std::memory_order_relaxed)) {
      state.release();
      return;
    }
  }
}

}  // namespace aspen
