#include "plan.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>

#include "run_state.h"

namespace aspen {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Plan::Plan(Graph graph, const KernelRegistry& registry, bool trusted)
    : graph_(std::move(graph)),
      memory_bytes_(static_cast<size_t>(graph_.workspace_bytes)),
      run_states_(std::make_unique<RunStateCache>()) {
  std::vector<const Kernel*> kernels;
  for (const std::string& name : graph_.kernel_names) {
    kernels.push_back(registry.find(name));
    if (kernels.back() == nullptr) {
      throw GraphError("no kernel named '" + name +
                       "' is registered; register the library that has it, or make the graph anew: it is for another "
                       "back-end or version");
    }
  }
  prepared_.reserve(graph_.ops.size());
  std::vector<TensorView> views, further;
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    views.clear();
    for (const Input& input : graph_.inputs_of(op)) views.push_back(input.view);
    further.clear();
    for (const int32_t value : graph_.further_of(op)) further.push_back(graph_.values[value].dense);
    const std::string where = "op '" + graph_.op_names[i] + "' (" + graph_.kernel_names[op.kernel] + "): ";
    if (!further.empty() && !kernels[op.kernel]->has_further) throw GraphError(where + "its kernel writes one output alone");
    try {
      prepared_.push_back(kernels[op.kernel]->prepare({views, graph_.values[op.output].dense, graph_.params_of(op), further}));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // a user's kernel may throw anything
      throw GraphError(where + error.what());
    } catch (...) {
      throw GraphError(where + "its kernel threw what is no std::exception; throw GraphError");
    }
    if (prepared_.back().run == nullptr) throw GraphError(where + "its kernel prepared nothing to run");
    scratch_bytes_ = std::max(scratch_bytes_, prepared_.back().scratch_bytes);
    may_not_end_ |= prepared_.back().may_not_end;
    if (const size_t bytes = prepared_.back().kept_bytes; bytes > 0) {
      memory_bytes_ = (memory_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
      kept_.push_back({static_cast<uint32_t>(i), memory_bytes_});
      if (__builtin_add_overflow(memory_bytes_, bytes, &memory_bytes_)) throw GraphError(where + "its tile keeps too much");
    }
  }

  for (const Input& input : graph_.inputs) inputs_.push_back({graph_.values[input.value].buffer, input.offset});
  if (!trusted) {
    std::vector<bool> is_read(static_cast<size_t>(graph_.workspace()) + 1);
    for (const Place& place : inputs_) is_read[static_cast<size_t>(place.buffer)] = true;
    for (size_t i = 0; i < num_results(); ++i) {
      if (is_read[num_operands() + i] && result(i).bytes > 0) results_to_clear_.push_back(static_cast<uint32_t>(i));
    }
  }
  const auto place_of = [&](int32_t value) -> Place { return {graph_.values[value].buffer, graph_.values[value].offset}; };
  for (const Op& op : graph_.ops) outputs_.push_back(place_of(op.output));
  for (const int32_t value : graph_.further) further_.push_back(place_of(value));

  tiles_.reserve(num_tiles() + 1);
  for (size_t tile = 0; tile < num_tiles(); ++tile) {
    tiles_.push_back(
        {graph_.boxes.data() + graph_.first_box[tile], static_cast<uint32_t>(graph_.tile_ops[tile]), graph_.first_child[tile]});
    if (graph_.parents[tile] == 0) roots_.push_back(static_cast<int32_t>(tile));
    if (__builtin_add_overflow(total_cost_, graph_.costs[tile], &total_cost_)) {
      total_cost_ = std::numeric_limits<int64_t>::max();
    }
  }
  tiles_.push_back({nullptr, 0, graph_.first_child.back()});
  for (const auto& [op, begin] : kept_) {
    if (std::ranges::count(graph_.tile_ops, static_cast<int32_t>(op)) > 1) {
      throw GraphError("op '" + graph_.op_names[op] + "' (" + graph_.kernel_names[graph_.ops[op].kernel] +
                       ") has several tiles; its kernel computes all of its output in one");
    }
  }
}

Plan::~Plan() = default;

std::string Plan::describe_tile(size_t tile) const {
  const auto box = graph_.box_of(tile);
  const size_t rank = box.size() / 2;
  std::string text = "tile " + std::to_string(tile) + " [";
  for (size_t d = 0; d < rank; ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(box[d]) + ":" + std::to_string(box[rank + d]);
  }
  return text + "] of op '" + graph_.op_names[graph_.tile_ops[tile]] + "'";
}

}  // namespace aspen
