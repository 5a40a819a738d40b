// The kernel "concatenate": inputs of any strides, one after the other along an axis.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aspen_jax/engine/words.h"
#include "box.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_concatenate(const OpSpec& spec);

namespace {

struct ConcatenateState final : OpState {
  TensorView output;
  int axis = 0;
  std::vector<TensorView> inputs;
  std::vector<int64_t> starts;  // of each input along the axis
};

const char* run_concatenate(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const ConcatenateState*>(args.state);
  const TensorView& output = state.output;
  const int64_t bytes = size_of(output.dtype);
  // The first input that reaches into the box.
  const auto after = std::upper_bound(state.starts.begin(), state.starts.end(), int64_t{args.lo[state.axis]});
  for (auto i = static_cast<size_t>(after - state.starts.begin() - 1); i < state.inputs.size(); ++i) {
    const TensorView& input = state.inputs[i];
    if (state.starts[i] >= args.hi[state.axis]) break;
    int64_t extents[kMaxRank];
    int64_t from = 0, to = 0;
    bool is_empty = false;
    for (int axis = 0; axis < output.rank; ++axis) {
      const int64_t start = axis == state.axis ? state.starts[i] : 0;
      const int64_t lo = std::max<int64_t>(args.lo[axis], start);
      const int64_t hi = std::min<int64_t>(args.hi[axis], start + input.shape[axis]);
      extents[axis] = hi - lo;
      is_empty |= lo >= hi;
      from += (lo - start) * input.strides[axis];
      to += lo * output.strides[axis];
    }
    if (is_empty) continue;
    copy_box(bytes, output.rank, extents, static_cast<const std::byte*>(args.inputs[i]) + from * bytes, input.strides,
             static_cast<std::byte*>(args.output) + to * bytes, output.strides);
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_concatenate(const OpSpec& spec) {
  auto state = std::make_unique<ConcatenateState>();
  WordReader words(spec.params);
  state->output = spec.output;
  state->axis = static_cast<int>(words.integer(0, spec.output.rank - 1, "concatenate's axis"));
  words.integer(0, 0, "concatenate's mark for an epilogue (it cannot have one)");
  if (!words.done()) throw GraphError("there are words after concatenate's parameters");
  if (spec.inputs.empty()) throw GraphError("concatenate needs at least one input");
  int64_t start = 0;
  for (const TensorView& input : spec.inputs) {
    const std::string name = "input " + std::to_string(state->inputs.size()) + " of concatenate";
    if (input.dtype != spec.output.dtype) throw GraphError(name + " has not the output's dtype");
    if (input.rank != spec.output.rank) throw GraphError(name + " has not the output's rank");
    for (int axis = 0; axis < input.rank; ++axis) {
      if (axis != state->axis && input.shape[axis] != spec.output.shape[axis]) {
        throw GraphError(name + " differs from the output along axis " + std::to_string(axis));
      }
    }
    state->inputs.push_back(input);
    state->starts.push_back(start);
    const int64_t left = spec.output.shape[state->axis] - start;
    if (input.shape[state->axis] > left) throw GraphError(name + " ends beyond the output");
    start += input.shape[state->axis];
  }
  if (start != spec.output.shape[state->axis]) throw GraphError("concatenate's inputs together are shorter than its output");
  return {std::move(state), run_concatenate, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
