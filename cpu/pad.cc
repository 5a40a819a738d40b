// The kernel "pad": an input surrounded by (or, where negative, stripped of) a border, and spread with a value between its
// elements.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "box.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_pad(const OpSpec& spec);

namespace {

struct PadState final : OpState {
  TensorView input;
  TensorView output;
  int64_t lo[kMaxRank];
  int64_t step[kMaxRank];  // from one input element to the next, in the output: interior + 1
};

constexpr int64_t kNoStrides[kMaxRank] = {};

const char* run_pad(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const PadState*>(args.state);
  const TensorView& output = state.output;
  const int rank = output.rank;
  const int64_t bytes = size_of(output.dtype);
  int64_t lo[kMaxRank], hi[kMaxRank];
  for (int axis = 0; axis < rank; ++axis) {
    lo[axis] = args.lo[axis];
    hi[axis] = args.hi[axis];
    if (lo[axis] >= hi[axis]) return nullptr;
  }

  const auto fill = [&] {
    int64_t extents[kMaxRank];
    int64_t to = 0;
    for (int axis = 0; axis < rank; ++axis) {
      extents[axis] = hi[axis] - lo[axis];
      to += lo[axis] * output.strides[axis];
    }
    copy_box(bytes, rank, extents, args.inputs[1], kNoStrides, static_cast<std::byte*>(args.output) + to * bytes, output.strides);
  };

  // Slab by slab what lies outside the input is filled and cut off the box, until the box spans from input element to element.
  int64_t extents[kMaxRank], strides[kMaxRank];
  int64_t from = 0, to = 0;
  bool has_gaps = false;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t step = state.step[axis];
    // The first and one beyond the last input element inside the box.
    const int64_t first = std::max<int64_t>(0, (lo[axis] - state.lo[axis] + step - 1) / step);
    const int64_t last =
        hi[axis] <= state.lo[axis] ? 0 : std::min(state.input.shape[axis], (hi[axis] - 1 - state.lo[axis]) / step + 1);
    if (first >= last) {
      fill();
      return nullptr;
    }
    const int64_t begin = state.lo[axis] + first * step;
    const int64_t end = state.lo[axis] + (last - 1) * step + 1;
    const auto fill_slab = [&](int64_t slab_lo, int64_t slab_hi) {
      if (slab_lo >= slab_hi) return;
      const auto [box_lo, box_hi] = std::pair(lo[axis], hi[axis]);
      lo[axis] = slab_lo;
      hi[axis] = slab_hi;
      fill();
      lo[axis] = box_lo;
      hi[axis] = box_hi;
    };
    fill_slab(lo[axis], begin);
    fill_slab(end, hi[axis]);
    lo[axis] = begin;
    hi[axis] = end;
    has_gaps |= step > 1 && last - first > 1;
    extents[axis] = last - first;
    strides[axis] = output.strides[axis] * step;
    from += first * state.input.strides[axis];
    to += begin * output.strides[axis];
  }
  if (has_gaps) fill();
  copy_box(bytes, rank, extents, static_cast<const std::byte*>(args.inputs[0]) + from * bytes, state.input.strides,
           static_cast<std::byte*>(args.output) + to * bytes, strides);
  return nullptr;
}

}  // namespace

PreparedOp prepare_pad(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& input = reader.input(0, "x", {});
  reader.input(1, "the padding value", {.rank = 0, .dtypes = input.dtype});
  reader.end_inputs(2);
  const TensorView& output = reader.output({.rank = input.rank, .dtypes = input.dtype});
  auto state = std::make_unique<PadState>();
  state->input = input;
  state->output = output;

  const auto rank = static_cast<size_t>(output.rank);
  // These ranges keep all the products below inside 64 bits.
  const auto lo = reader.list(rank, -kMaxExtent, kMaxExtent, "lo");
  const auto hi = reader.list(rank, -kMaxExtent, kMaxExtent, "hi");
  const auto interior = reader.list(rank, 0, kMaxExtent, "interior");
  reader.end_without_program();
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t spread = input.shape[axis] + std::max<int64_t>(input.shape[axis] - 1, 0) * interior[axis];
    check_extent(output, "the output", static_cast<int>(axis), std::max<int64_t>(spread + lo[axis] + hi[axis], 0));
    state->lo[axis] = lo[axis];
    state->step[axis] = interior[axis] + 1;
  }
  return {std::move(state), run_pad, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
