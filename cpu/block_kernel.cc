// The kernel "block": a block program over operands of the output's shape, however they are strided.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "box.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_block(const OpSpec& spec);

namespace {

struct BlockState final : OpState {
  BlockProgram program;
  TensorView output;                 // the first; others differ from it in dtype alone
  std::vector<DType> output_dtypes;  // of all
  std::vector<TensorView> inputs;
};

const char* run_block(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const BlockState*>(args.state);
  const int num_inputs = static_cast<int>(state.inputs.size());
  const TensorView& output = state.output;

  constexpr int kMaxOperands = BlockProgram::kMaxInputs + 1;  // operand 0 is the output
  LoopNest<kMaxOperands> nest(num_inputs + 1);
  int64_t first[kMaxOperands] = {};
  for (int axis = output.rank - 1; axis >= 0; --axis) {
    const auto stride_of = [&](int i) { return i == 0 ? output.strides[axis] : state.inputs[i - 1].strides[axis]; };
    if (args.lo[axis] >= args.hi[axis]) return nullptr;
    nest.add_outside(args.hi[axis] - args.lo[axis], stride_of);
    for (int i = 0; i <= num_inputs; ++i) first[i] += args.lo[axis] * stride_of(i);
  }

  const int row_loop = nest.widen(kLanes);
  const int64_t cols = nest.depth > 0 ? nest.extents[0] : 1;
  const int64_t rows = row_loop > 0 ? nest.extents[row_loop] : 1;
  const auto row_stride = [&](int i) { return row_loop > 0 ? nest.strides[row_loop][i] : 0; };
  const auto col_stride = [&](int i) { return nest.depth > 0 ? nest.strides[0][i] : 1; };
  nest.for_each_plane(row_loop, [&](const int64_t* offsets) {
    Plane planes[BlockProgram::kMaxInputs];
    for (int i = 0; i < num_inputs; ++i) {
      const auto* data = static_cast<const std::byte*>(args.inputs[i]);
      planes[i] = {data + (first[i + 1] + offsets[i + 1]) * size_of(state.inputs[i].dtype), row_stride(i + 1), col_stride(i + 1)};
    }
    void* outs[BlockProgram::kMaxOutputs];
    for (size_t i = 0; i < state.output_dtypes.size(); ++i) {
      auto* const data = static_cast<std::byte*>(i == 0 ? args.output : args.further[i - 1]);
      outs[i] = data + (first[0] + offsets[0]) * size_of(state.output_dtypes[i]);
    }
    state.program.run(planes, outs, row_stride(0), col_stride(0), rows, cols, args.scratch);
  });
  return nullptr;
}

Box reads_of_block(const OpState&, const Box& box) noexcept { return box; }

}  // namespace

PreparedOp prepare_block(const OpSpec& spec) {
  auto state = std::make_unique<BlockState>();
  state->output = spec.output;
  state->inputs.assign(spec.inputs.begin(), spec.inputs.end());
  SpecReader reader(spec);
  std::vector<DType> dtypes;
  for (const TensorView& input : spec.inputs) {
    check_shape(input, "input " + std::to_string(dtypes.size()), shape_of(spec.output));
    dtypes.push_back(input.dtype);
  }
  reader.integer(1, 1, "the mark for a block program");
  check_range(static_cast<int64_t>(spec.further.size()), 0, BlockProgram::kMaxOutputs - 1, "the number of further outputs");
  state->output_dtypes.push_back(spec.output.dtype);
  for (const TensorView& output : spec.further) {
    check_shape(output, "a further output", shape_of(spec.output));
    state->output_dtypes.push_back(output.dtype);
  }
  state->program = BlockProgram::parse(reader, dtypes, spec.output.dtype, std::span(state->output_dtypes).subspan(1));
  reader.end();
  const size_t scratch_bytes = state->program.scratch_bytes();
  return {std::move(state), run_block, scratch_bytes, reads_of_block};
}

}  // namespace aspen::cpu::ASPEN_TARGET
