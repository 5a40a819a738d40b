// The kernel "concatenate": inputs of any strides, one after the other along an axis; then an epilogue, for which the elements of
// each input along the last axis are adjacent.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "box.h"
#include "epilogue.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_concatenate(const OpSpec& spec);

namespace {

struct ConcatenateState final : OpState {
  TensorView output;
  int axis = 0;
  std::vector<TensorView> inputs;
  std::vector<int64_t> starts;  // of each input along the axis
  Epilogue epilogue;
};

// kRows rows of kVectors vectors, the last of `lanes` columns, through all steps of `finish`, whose operands begin at `row` and
// `column`.
template <int kRows, int kVectors>
void finish_block(const Finish& finish, int64_t row, int64_t column, int lanes, const float* from, int64_t from_stride, float* to,
                  int64_t to_stride) {
  const auto get = [&](const float* at, int v) __attribute__((always_inline)) {
    return v == kVectors - 1 && lanes < kLanes ? load_partial(at, lanes) : load(at);
  };
  Floats x[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) x[r][v] = get(from + r * from_stride + v * kLanes, v);
  }
  finish_in_registers(finish, 0, row, column, x, get);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* const at = to + r * to_stride + v * kLanes;
      if (v == kVectors - 1 && lanes < kLanes) {
        store_partial(at, x[r][v], lanes);
      } else {
        store(at, x[r][v]);
      }
    }
  }
}

void finish_rows(const Finish& finish, int64_t rows, int64_t columns, const float* from, int64_t from_stride, float* to,
                 int64_t to_stride) {
  constexpr int kRows = 4;
  for (int64_t column = 0; column < columns;) {
    const int64_t left = columns - column;
    const int vectors = left > kLanes ? 2 : 1;
    const int lanes = static_cast<int>(std::min<int64_t>(left - (vectors - 1) * kLanes, kLanes));
    const auto block = [&]<int kCount>(std::integral_constant<int, kCount>, int64_t row) {
      const auto run = vectors == 2 ? finish_block<kCount, 2> : finish_block<kCount, 1>;
      run(finish, row, column, lanes, from + row * from_stride + column, from_stride, to + row * to_stride + column, to_stride);
    };
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) block(std::integral_constant<int, kRows>(), row);
    for (; row < rows; ++row) block(std::integral_constant<int, 1>(), row);
    column += vectors * kLanes;
  }
}

// The epilogue on what lies at `from` of an input, as the box [lo, lo + extents) of the output.
void finish(const ConcatenateState& state, const TileArgs& args, const int64_t* lo, const int64_t* extents, const std::byte* from,
            const TensorView& input) {
  const TensorView& output = state.output;
  const int last = output.rank - 1, row_axis = std::max(last - 1, 0);
  const bool has_rows = last > 0;
  // Rows of several indices of the axis outside them, where they are laid out as one.
  const bool joins = row_axis > 0 && extents[row_axis] == output.shape[row_axis] && state.epilogue.runs_on(row_axis) &&
                     input.strides[row_axis - 1] == extents[row_axis] * input.strides[row_axis];
  const int outer = joins ? row_axis - 1 : row_axis;
  const int64_t rows = (has_rows ? extents[row_axis] : 1) * (joins ? extents[row_axis - 1] : 1);
  int64_t at[kMaxRank];
  std::copy_n(lo, output.rank, at);
  for (;;) {
    int64_t offset = 0;
    for (int axis = 0; axis < outer; ++axis) offset += (at[axis] - lo[axis]) * input.strides[axis];
    const auto* const piece = from + offset * size_of(input.dtype);
    Finish steps;
    if (state.epilogue.begins_in_registers()) state.epilogue.finish(args, at, row_axis, steps);
    if (steps.length > 0 && steps.completes) {
      finish_rows(steps, rows, extents[last], reinterpret_cast<const float*>(piece), input.strides[row_axis],
                  reinterpret_cast<float*>(state.epilogue.output_at(args, at)), output.strides[row_axis]);
    } else {
      state.epilogue.apply(args, at, row_axis, rows, extents[last], piece, input.strides[row_axis], args.scratch);
    }
    int axis = outer - 1;
    for (; axis >= 0 && ++at[axis] == lo[axis] + extents[axis]; --axis) at[axis] = lo[axis];
    if (axis < 0) return;
  }
}

const char* run_concatenate(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const ConcatenateState*>(args.state);
  const TensorView& output = state.output;
  const int64_t bytes = size_of(state.inputs[0].dtype);
  // The first input that reaches into the box.
  const auto after = std::upper_bound(state.starts.begin(), state.starts.end(), int64_t{args.lo[state.axis]});
  for (auto i = static_cast<size_t>(after - state.starts.begin() - 1); i < state.inputs.size(); ++i) {
    const TensorView& input = state.inputs[i];
    if (state.starts[i] >= args.hi[state.axis]) break;
    int64_t first[kMaxRank], extents[kMaxRank];
    int64_t from = 0, to = 0;
    bool is_empty = false;
    for (int axis = 0; axis < output.rank; ++axis) {
      const int64_t start = axis == state.axis ? state.starts[i] : 0;
      const int64_t lo = std::max<int64_t>(args.lo[axis], start);
      const int64_t hi = std::min<int64_t>(args.hi[axis], start + input.shape[axis]);
      first[axis] = lo;
      extents[axis] = hi - lo;
      is_empty |= lo >= hi;
      from += (lo - start) * input.strides[axis];
      to += lo * output.strides[axis];
    }
    if (is_empty) continue;
    const std::byte* const piece = static_cast<const std::byte*>(args.inputs[i]) + from * bytes;
    if (state.epilogue.empty()) {
      copy_box(bytes, output.rank, extents, piece, input.strides, static_cast<std::byte*>(args.output) + to * bytes,
               output.strides);
    } else {
      finish(state, args, first, extents, piece, input);
    }
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_concatenate(const OpSpec& spec) {
  auto state = std::make_unique<ConcatenateState>();
  SpecReader reader(spec);
  state->output = spec.output;
  state->axis = static_cast<int>(reader.integer(0, spec.output.rank - 1, "the axis"));
  const DType dtype = reader.input(0, "the first one to concatenate", {}).dtype;
  int64_t start = 0;
  // The inputs that fill the output; those that follow are the epilogue's.
  for (const TensorView& input : spec.inputs) {
    const int64_t left = spec.output.shape[state->axis] - start;
    if (left == 0 && !is_empty(input)) break;
    const std::string name = "input " + std::to_string(state->inputs.size());
    check_view(input, name, {.rank = spec.output.rank, .dtypes = dtype});
    for (int axis = 0; axis < input.rank; ++axis) {
      if (axis != state->axis) check_extent(input, name, axis, spec.output.shape[axis]);
    }
    if (input.shape[state->axis] > left) throw GraphError(name + " ends beyond the output");
    state->inputs.push_back(input);
    state->starts.push_back(start);
    start += input.shape[state->axis];
  }
  if (start != spec.output.shape[state->axis]) throw GraphError("the inputs together are shorter than the output");
  state->epilogue = Epilogue::parse(reader, state->inputs.size(), dtype);
  if (!state->epilogue.empty()) {
    for (const TensorView& input : state->inputs) check_view(input, "an input before an epilogue", {.adjacent = true});
  }
  const size_t scratch_bytes = state->epilogue.scratch_bytes();
  return {std::move(state), run_concatenate, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
