// partial_reduce: an op, and partial reductions of its result (Bolt, section 3.1.1). A tile computes some rows of the result and
// reduces them while they lie in the L2 cache.
//
// The further output holds the partial results: one for each `unit` indices of the result along a reduced axis. A tile writes
// whole units. What adds the partial results up has one order, whoever computed them.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "parts.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_partial_reduce(const OpSpec& spec);
PreparedOp prepare_reduce(const OpSpec& spec);

namespace {

struct PartialReduce final : OpState {
  PreparedOp part;
  PreparedOp reduce;
  int rank = 0;
  int64_t unit[kMaxRank] = {};
  int64_t item_bytes = 0;   // of the result
  int64_t strip_bytes = 0;  // of the result that is computed before it is reduced, at most
};

// Both parts on a box of whole units, which is not empty.
const char* run_box(const PartialReduce& state, const TileArgs& args, const Box& box) noexcept {
  if (const char* const error =
          state.part.run({state.part.state.get(), args.inputs, args.output, box.lo, box.hi, args.scratch})) {
    return error;
  }
  Box units;
  for (int d = 0; d < state.rank; ++d) {
    units.lo[d] = static_cast<int32_t>(box.lo[d] / state.unit[d]);
    units.hi[d] = static_cast<int32_t>(box.hi[d] / state.unit[d]);
  }
  const void* const inputs[] = {args.output};
  return state.reduce.run({state.reduce.state.get(), inputs, args.further[0], units.lo, units.hi, args.scratch});
}

// A box in strips that fit the cache.
const char* run(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const PartialReduce*>(args.state);
  Box box;
  int64_t bytes = state.item_bytes;
  int axis = 0;  // the outermost of several units
  for (int d = state.rank - 1; d >= 0; --d) {
    const int32_t lo = box.lo[d] = args.lo[d], hi = box.hi[d] = args.hi[d];
    if (lo >= hi) return nullptr;
    if (lo % state.unit[d] != 0 || hi % state.unit[d] != 0) return "a tile cuts what a partial result is reduced from";
    if (hi - lo > state.unit[d]) axis = d;
    bytes *= hi - lo;
  }
  const int64_t unit = state.unit[axis], row_bytes = std::max<int64_t>(bytes / (args.hi[axis] - args.lo[axis]), 1);
  const int64_t step = std::max<int64_t>(state.strip_bytes / row_bytes / unit, 1) * unit;
  for (int64_t lo = args.lo[axis]; lo < args.hi[axis]; lo += step) {
    box.lo[axis] = static_cast<int32_t>(lo);
    box.hi[axis] = static_cast<int32_t>(std::min<int64_t>(lo + step, args.hi[axis]));
    if (const char* const error = run_box(state, args, box)) return error;
  }
  return nullptr;
}

// The result with each reduced axis cut in two, of which the second is reduced: units, and indices in a unit.
TensorView in_units(const TensorView& result, std::span<const int64_t> unit, std::span<const int64_t> axes) {
  if (result.rank + static_cast<int>(axes.size()) > kMaxRank) {
    throw GraphError("a result of rank " + std::to_string(result.rank) + " is reduced along " + std::to_string(axes.size()) +
                     " axes, which are " + std::to_string(kMaxRank) + " at most together");
  }
  TensorView view;
  view.dtype = result.dtype;
  for (int d = 0; d < result.rank; ++d) {
    const int64_t size = unit[static_cast<size_t>(d)];
    const bool is_reduced = std::ranges::find(axes, d) != axes.end();
    view.shape[view.rank] = result.shape[d] / size;
    view.strides[view.rank++] = result.strides[d] * size;
    if (!is_reduced) continue;
    view.shape[view.rank] = size;
    view.strides[view.rank++] = result.strides[d];
  }
  return view;
}

}  // namespace

PreparedOp prepare_partial_reduce(const OpSpec& spec) {
  SpecReader reader(spec);
  check_range(static_cast<int64_t>(spec.further.size()), 1, 1, "the number of further outputs");
  const TensorView& result = reader.output({.rank = {1, kMaxRank}});
  const TensorView& partial = spec.further[0];
  auto state = std::make_unique<PartialReduce>();
  state->rank = result.rank;
  const Kernel& kernel = part_kernel(reader.list());
  const int64_t kind = reader.integer(0, 6, "the kind");
  const auto axes = reader.axes(result.rank, "axes");
  const auto unit = reader.list(static_cast<size_t>(result.rank), 1, kMaxExtent, "the unit of a partial result");
  std::vector<int64_t> units;
  std::vector<int64_t> reduce_words = {kind, static_cast<int64_t>(axes.size())};
  for (int d = 0; d < result.rank; ++d) {
    const int64_t size = state->unit[d] = unit[static_cast<size_t>(d)];
    const bool is_reduced = std::ranges::find(axes, d) != axes.end();
    if (result.shape[d] % size != 0 || (size > 1 && !is_reduced)) {
      throw GraphError("axis " + std::to_string(d) + " of " + describe(result) + " cannot be reduced in units of " +
                       std::to_string(size));
    }
    units.push_back(result.shape[d] / size);
    // Among the axes of units and of indices within.
    if (is_reduced) reduce_words.push_back(d + static_cast<int64_t>(reduce_words.size()) - 1);
  }
  check_shape(partial, "the further output", units);
  reduce_words.push_back(0);  // no epilogue

  const std::string what = std::string("the op that is reduced (") + kernel.name + ")";
  const auto behind = spec.params.subspan(static_cast<size_t>(unit.data() + unit.size() - spec.params.data()));
  state->part = prepare_part(what.c_str(), kernel.prepare, {spec.inputs, result, behind});
  const TensorView inputs[] = {in_units(result, unit, axes)};
  state->reduce = prepare_part("the reduction", prepare_reduce, {inputs, partial, reduce_words});
  state->item_bytes = size_of(result.dtype);
  state->strip_bytes = l2_cache_bytes() / 2;
  const size_t scratch_bytes = std::max(state->part.scratch_bytes, state->reduce.scratch_bytes);
  return {std::move(state), run, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
