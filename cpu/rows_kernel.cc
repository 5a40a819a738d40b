// The kernel "rows": a row program over operands of one shape, some of whose axes make up a row.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "box.h"
#include "rows.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_rows(const OpSpec& spec);

namespace {

constexpr int kMaxOperands = BlockProgram::kMaxInputs + 1;  // operand 0 is the output

struct Axis {
  int output;  // the output's axis
  int64_t extent;
  std::vector<int64_t> strides;  // of each operand
};

struct RowsState final : OpState {
  RowProgram program;
  TensorView output;
  std::vector<DType> dtypes;   // of the inputs
  std::vector<DType> further;  // of the outputs beside the first
  std::vector<Axis> kept;      // innermost first
  std::vector<int> row_axes;   // of the output, if it has a value for each element of a row
  RowNest nest;
  std::vector<RowOperand> operands;  // their strides
  bool across = false;
};

// Whether, along some kept axis, rows are adjacent in an operand where their elements are not.
bool is_adjacent(const RowsState& state, int64_t extent, const auto& stride_of) {
  if (extent < 2) return false;
  for (size_t i = 0; i < state.operands.size(); ++i) {
    if (std::abs(stride_of(i)) == 1 && std::abs(state.operands[i].strides[0]) > 1) return true;
  }
  return false;
}

const char* run_rows(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const RowsState*>(args.state);
  const auto num_operands = static_cast<int>(state.operands.size());
  const TensorView& output = state.output;
  for (int axis = 0; axis < output.rank; ++axis) {
    if (args.lo[axis] >= args.hi[axis]) return nullptr;
  }
  LoopNest<kMaxOperands> nest(num_operands);
  int64_t first[kMaxOperands] = {};
  for (const Axis& axis : state.kept) {
    const int64_t lo = args.lo[axis.output];
    nest.add_outside(args.hi[axis.output] - lo, [&](int i) { return axis.strides[static_cast<size_t>(i)]; });
    for (int i = 0; i < num_operands; ++i) first[i] += lo * axis.strides[static_cast<size_t>(i)];
  }
  for (const int axis : state.row_axes) {
    if (args.lo[axis] != 0 || args.hi[axis] != output.shape[axis]) return "a tile of a row program cuts its rows";
  }

  // The loop whose iterations are the rows that are worked on together.
  int rows_loop = 0;
  bool across = false;
  for (int loop = 0; loop < nest.depth && state.across && !across; ++loop) {
    across = is_adjacent(state, nest.extents[loop], [&](size_t i) { return nest.strides[loop][i]; });
    if (across) rows_loop = loop;
  }
  const int64_t rows = nest.depth > 0 ? nest.extents[rows_loop] : 1;

  RowOperand operands[kMaxOperands];
  int64_t offsets[kMaxOperands];
  for (int i = 0; i < num_operands; ++i) {
    operands[i] = state.operands[static_cast<size_t>(i)];
    operands[i].row_stride = nest.depth > 0 ? nest.strides[rows_loop][i] : 0;
    offsets[i] = first[i];
  }
  int64_t index[kMaxRank] = {};
  for (;;) {
    operands[0].data = static_cast<std::byte*>(args.output) + offsets[0] * size_of(output.dtype);
    for (int i = 1; i < num_operands; ++i) {
      operands[i].data =
          static_cast<const std::byte*>(args.inputs[i - 1]) + offsets[i] * size_of(state.dtypes[static_cast<size_t>(i - 1)]);
    }
    void* further[kMaxOperands];
    for (size_t i = 0; i < state.further.size(); ++i) {
      further[i] = static_cast<std::byte*>(args.further[i]) + offsets[0] * size_of(state.further[i]);
    }
    state.program.run(state.nest, operands + 1, operands[0], rows, across, args.scratch, further);
    int loop = 0;
    for (; loop < nest.depth; ++loop) {
      if (loop == rows_loop) continue;
      const bool goes_on = ++index[loop] < nest.extents[loop];
      for (int i = 0; i < num_operands; ++i) offsets[i] += nest.strides[loop][i] * (goes_on ? 1 : 1 - nest.extents[loop]);
      if (goes_on) break;
      index[loop] = 0;
    }
    if (loop >= nest.depth) return nullptr;
  }
}

}  // namespace

PreparedOp prepare_rows(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "input 0", {});
  const TensorView& output = reader.output(Wanted{});
  auto state = std::make_unique<RowsState>();
  state->output = output;
  for (const TensorView& input : spec.inputs) {
    check_shape(input, "input " + std::to_string(state->dtypes.size()), shape_of(x));
    state->dtypes.push_back(input.dtype);
  }

  bool is_row[kMaxRank] = {};
  int64_t length = 1;
  const auto axes = reader.axes(x.rank, "axes");
  check_range(static_cast<int64_t>(axes.size()), 1, x.rank, "the number of axes");
  for (const int64_t axis : axes) {
    is_row[axis] = true;
    length *= x.shape[axis];
    check_range(length, 1, RowProgram::kMaxLength, "the length of the rows of " + describe(x));
  }
  for (const TensorView& other : spec.further) {
    check_shape(other, "a further output", shape_of(output));
    state->further.push_back(other.dtype);
  }
  state->program = RowProgram::parse(reader, state->dtypes, output.dtype, state->further);
  reader.end_without_program();

  const bool gives_rows = state->program.gives_rows();
  const auto num_operands = static_cast<int>(spec.inputs.size()) + 1;
  LoopNest<kMaxOperands> nest(num_operands);
  int kept = gives_rows ? x.rank : x.rank - static_cast<int>(axes.size());
  check_view(output, "the output", {.rank = kept});
  for (int axis = x.rank - 1; axis >= 0; --axis) {
    const int output_axis = gives_rows ? axis : is_row[axis] ? -1 : --kept;
    if (output_axis >= 0) check_extent(output, "the output", output_axis, x.shape[axis]);
    const auto stride_of = [&](int i) {
      if (i == 0) return output_axis < 0 ? 0 : used_stride(output, output_axis);
      return used_stride(spec.inputs[static_cast<size_t>(i - 1)], axis);
    };
    if (is_row[axis]) {
      if (gives_rows) state->row_axes.push_back(axis);
      nest.add_outside(x.shape[axis], stride_of);
      for (int i = 1; i < num_operands; ++i) {
        if (state->program.reads_once(static_cast<size_t>(i - 1)) && stride_of(i) != 0) {
          throw GraphError("input " + std::to_string(i - 1) + " is read once a row but differs along it");
        }
      }
      continue;
    }
    Axis& loop = state->kept.emplace_back(Axis{output_axis, x.shape[axis], {}});
    for (int i = 0; i < num_operands; ++i) loop.strides.push_back(stride_of(i));
  }

  // The order of a row's elements is free: the loop that most operands find adjacent is the innermost.
  int inner = 0;
  int64_t best = -1;
  for (int loop = 0; loop < nest.depth; ++loop) {
    const auto adjacent = std::count_if(nest.strides[loop], nest.strides[loop] + num_operands,
                                        [](int64_t stride) { return std::abs(stride) == 1; });
    if (adjacent > best) {
      best = adjacent;
      inner = loop;
    }
  }
  state->operands.resize(static_cast<size_t>(num_operands));
  state->nest.depth = std::max(nest.depth, 1);
  state->nest.extents[0] = 1;
  for (int loop = 0; loop < nest.depth; ++loop) {
    const int source = loop == 0 ? inner : loop <= inner ? loop - 1 : loop;
    state->nest.extents[loop] = nest.extents[source];
    for (size_t i = 0; i < state->operands.size(); ++i) state->operands[i].strides[loop] = nest.strides[source][i];
  }
  if (best < 1) {
    for (const Axis& axis : state->kept) {
      state->across |= is_adjacent(*state, axis.extent, [&](size_t i) { return axis.strides[i]; });
    }
  }

  const RowProgram& program = state->program;
  size_t scratch_bytes = program.scratch_bytes(length, false);
  if (state->across) scratch_bytes = std::max(scratch_bytes, program.scratch_bytes(length, true));
  return {std::move(state), run_rows, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
