// The kernel "scatter": a tensor on which windows of updates are laid, each beginning where integer operands say; a later one
// replaces an earlier one, or is combined with what is there.
//
// A tile copies its box of x, unless the output lies where x does, and then walks all points of the indices, for a window may lie
// anywhere; it lays down the part of each window that is inside its box. So no two tiles write one element, and points take
// effect in their order. Where each point has a row of adjacent elements, rows are laid down without more ado.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "box.h"
#include "indices.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_scatter(const OpSpec& spec);

namespace {

enum class Combine : int64_t { kReplace = 0, kAdd = 1, kMultiply = 2, kMin = 3, kMax = 4 };

using CombineBox = void (*)(int rank, const int64_t* extents, const std::byte* from, const int64_t* from_strides, std::byte* to,
                            const int64_t* to_strides) noexcept;

// Lays rows of `columns` elements of updates on rows of the output: update which[i] on row rows[which[i]].
using LayRows = void (*)(const int64_t* rows, const int32_t* which, int64_t count, int64_t columns, const std::byte* from,
                         int64_t from_stride, std::byte* to, int64_t to_stride) noexcept;

struct ScatterState final : OpState {
  TensorView x;
  TensorView updates;
  TensorView output;
  bool is_indexed[kMaxRank] = {};  // the axes of the updates that walk the index operands, not a window
  int64_t walks[kMaxRank];         // for each axis of the output the axis of the updates, or -1
  int64_t starts[kMaxRank];        // along axes without a component
  int64_t sizes[kMaxRank];
  std::vector<IndexOperand> components;  // walked by axes of the updates
  bool is_x_dense = false;               // so that x is all there where the output begins at the same address
  bool drops = false;                    // windows that do not fit; else they are moved to where they do
  CombineBox combine = nullptr;          // replaces if null
  LayRows lay_rows = nullptr;            // where points have rows, along the last axes of the output
};

template <class T, Combine kCombine>
ASPEN_INLINE T combined(T a, T b) {
  if constexpr (kCombine == Combine::kAdd) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
    return a + b;
  } else if constexpr (kCombine == Combine::kMultiply) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    return a * b;
  } else if constexpr (kCombine == Combine::kMin) {
    return smaller(a, b);
  } else {
    return larger(a, b);
  }
}

template <class T, Combine kCombine>
void combine_box(int rank, const int64_t* extents, const std::byte* from, const int64_t* from_strides, std::byte* to,
                 const int64_t* to_strides) noexcept {
  LoopNest<2> nest(2);
  for (int axis = rank - 1; axis >= 0; --axis) {
    nest.add_outside(extents[axis], [&](int i) { return i == 0 ? to_strides[axis] : from_strides[axis]; });
  }
  const int64_t count = nest.depth > 0 ? nest.extents[0] : 1;
  const int64_t to_step = nest.depth > 0 ? nest.strides[0][0] : 1, from_step = nest.depth > 0 ? nest.strides[0][1] : 1;
  nest.for_each_plane(-1, [&](const int64_t* offsets) {
    T* const out = reinterpret_cast<T*>(to) + offsets[0];
    const T* const update = reinterpret_cast<const T*>(from) + offsets[1];
    if (to_step == 1 && from_step == 1) {
      for (int64_t i = 0; i < count; ++i) out[i] = combined<T, kCombine>(out[i], update[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i * to_step] = combined<T, kCombine>(out[i * to_step], update[i * from_step]);
    }
  });
}

template <class T, Combine kCombine>
void lay_rows(const int64_t* rows, const int32_t* which, int64_t count, int64_t columns, const std::byte* from,
              int64_t from_stride, std::byte* to, int64_t to_stride) noexcept {
  const T* const updates = reinterpret_cast<const T*>(from);
  T* const out = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) {
    T* const row = out + rows[which[i]] * to_stride;
    const T* const update = updates + which[i] * from_stride;
    if constexpr (kCombine == Combine::kReplace) {
      std::copy_n(update, columns, row);
    } else {
      for (int64_t c = 0; c < columns; ++c) row[c] = combined<T, kCombine>(row[c], update[c]);
    }
  }
}

// How windows are laid down (null: by copying their elements), and rows.
struct Laying {
  CombineBox window = nullptr;
  LayRows rows = nullptr;
};

template <class T, Combine kCombine>
constexpr Laying kLaying = {combine_box<T, kCombine>, lay_rows<T, kCombine>};
template <class T>
constexpr Laying kLaying<T, Combine::kReplace> = {nullptr, lay_rows<T, Combine::kReplace>};

// By Combine.
template <class T>
constexpr Laying kLayings[] = {kLaying<T, Combine::kReplace>, kLaying<T, Combine::kAdd>, kLaying<T, Combine::kMultiply>,
                               kLaying<T, Combine::kMin>, kLaying<T, Combine::kMax>};

Laying laying_of(DType dtype, Combine combine) {
  const auto index = static_cast<size_t>(combine);
  if (dtype == DType::kF32) return kLayings<float>[index];
  if (dtype == DType::kI32) return kLayings<int32_t>[index];
  if (combine == Combine::kReplace) return {};
  throw GraphError("the elements to combine are " + std::string(name_of(dtype)) +
                   ", where float32 or int32 is needed; leave other dtypes to XLA");
}

// A row, where the first axis walks the rows.
TensorView row_of(const TensorView& view) {
  TensorView row;
  row.dtype = view.dtype;
  row.rank = view.rank - 1;
  std::copy_n(view.shape + 1, row.rank, row.shape);
  std::copy_n(view.strides + 1, row.rank, row.strides);
  return row;
}

// Whether a point is one index, the number of a row of the output, and has a row of the updates of the same shape, both of
// adjacent elements.
bool have_rows(const ScatterState& state) {
  const TensorView& output = state.output;
  const TensorView& updates = state.updates;
  if (state.components.size() != 1 || state.components[0].axis != 0 || state.walks[0] != -1) return false;
  if (updates.rank != output.rank || !state.is_indexed[0]) return false;
  for (int axis = 1; axis < output.rank; ++axis) {
    if (state.walks[axis] != axis || state.is_indexed[axis]) return false;
  }
  const TensorView from = row_of(updates), to = row_of(output);
  return std::ranges::equal(shape_of(from), shape_of(to)) && is_dense(from) && is_dense(to);
}

// Lays down the part of one window, which begins at `starts`, that is inside the tile. `point` is its place in the updates.
void lay(const ScatterState& state, const TileArgs& args, const int64_t* starts, const int64_t* point) {
  const int rank = state.output.rank;
  const int64_t bytes = size_of(state.output.dtype);
  int64_t extents[kMaxRank], from_strides[kMaxRank], from = 0, to = 0;
  for (int d = 0; d < state.updates.rank; ++d) from += state.is_indexed[d] ? point[d] * state.updates.strides[d] : 0;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t walk = state.walks[axis];
    // Where the points walk the axis, a window is one element of it.
    const bool is_point = walk >= 0 && state.is_indexed[walk];
    const int64_t start = is_point ? starts[axis] + point[walk] : starts[axis];
    const int64_t size = is_point ? 1 : state.sizes[axis];
    const int64_t lo = std::max<int64_t>(args.lo[axis], start), hi = std::min<int64_t>(args.hi[axis], start + size);
    if (lo >= hi) return;
    extents[axis] = hi - lo;
    from_strides[axis] = walk >= 0 && !is_point ? state.updates.strides[walk] : 0;
    from += (lo - start) * from_strides[axis];
    to += lo * state.output.strides[axis];
  }
  const auto* const source = static_cast<const std::byte*>(args.inputs[1]) + from * bytes;
  auto* const target = static_cast<std::byte*>(args.output) + to * bytes;
  if (state.combine == nullptr) {
    copy_box(bytes, rank, extents, source, from_strides, target, state.output.strides);
  } else {
    state.combine(rank, extents, source, from_strides, target, state.output.strides);
  }
}

// Lays rows down, if what the tile has of a row is adjacent. Returns whether it is.
bool run_rows(const ScatterState& state, const TileArgs& args) {
  const TensorView& output = state.output;
  int64_t columns = 1, first = 0;
  for (int axis = output.rank - 1; axis > 0; --axis) {
    const int64_t extent = args.hi[axis] - args.lo[axis];
    if (extent != output.shape[axis] && output.rank > 2) return false;
    first += args.lo[axis] * columns;
    columns *= extent;
  }
  const int64_t bytes = size_of(output.dtype), count = state.updates.shape[0], last = output.shape[0] - 1;
  for (int64_t begin = 0; begin < count; begin += kIndexChunk) {
    const int64_t size = std::min(kIndexChunk, count - begin);
    int64_t rows[kIndexChunk];
    state.components[0].load(args.inputs[2], &begin, 1, 0, size, rows);
    if (!state.drops) {
      for (int64_t i = 0; i < size; ++i) rows[i] = std::clamp<int64_t>(rows[i], 0, last);
    }
    // Those of the tile, listed without a branch that nobody can foresee.
    int32_t which[kIndexChunk];
    int64_t found = 0;
    for (int64_t i = 0; i < size; ++i) {
      which[found] = static_cast<int32_t>(i);
      found += (rows[i] >= args.lo[0]) & (rows[i] < args.hi[0]);
    }
    state.lay_rows(rows, which, found, columns,
                   static_cast<const std::byte*>(args.inputs[1]) + (begin * state.updates.strides[0] + first) * bytes,
                   state.updates.strides[0], static_cast<std::byte*>(args.output) + first * bytes, output.strides[0]);
  }
  return true;
}

// The box of x that the tile begins with.
void copy_x(const ScatterState& state, const TileArgs& args) {
  const TensorView& output = state.output;
  const int64_t bytes = size_of(output.dtype);
  int64_t extents[kMaxRank], from = 0, to = 0;
  for (int axis = 0; axis < output.rank; ++axis) {
    extents[axis] = args.hi[axis] - args.lo[axis];
    from += args.lo[axis] * state.x.strides[axis];
    to += args.lo[axis] * output.strides[axis];
  }
  copy_box(bytes, output.rank, extents, static_cast<const std::byte*>(args.inputs[0]) + from * bytes, state.x.strides,
           static_cast<std::byte*>(args.output) + to * bytes, output.strides);
}

// Lays down the windows of `count` points: the first at `at`, the next ones along axis `inner` of the updates.
void lay_points(const ScatterState& state, const TileArgs& args, int64_t* at, int inner, int64_t count) {
  const TensorView& output = state.output;
  int64_t loaded[kMaxRank][kIndexChunk];
  for (size_t k = 0; k < state.components.size(); ++k) {
    state.components[k].load(args.inputs[k + 2], at, state.updates.rank, inner, count, loaded[k]);
  }
  for (int64_t i = 0; i < count; ++i) {
    int64_t starts[kMaxRank];
    std::copy_n(state.starts, output.rank, starts);
    bool fits = true;
    for (size_t k = 0; k < state.components.size(); ++k) {
      const int axis = state.components[k].axis;
      starts[axis] = std::clamp<int64_t>(loaded[k][i], 0, output.shape[axis] - state.sizes[axis]);
      fits &= starts[axis] == loaded[k][i];
    }
    if (fits || !state.drops) lay(state, args, starts, at);
    if (inner >= 0) ++at[inner];
  }
}

const char* run_scatter(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const ScatterState*>(args.state);
  const TensorView& output = state.output;
  for (int axis = 0; axis < output.rank; ++axis) {
    if (args.lo[axis] >= args.hi[axis]) return nullptr;
  }
  if (!state.is_x_dense || args.inputs[0] != args.output) copy_x(state, args);
  if (state.lay_rows != nullptr && run_rows(state, args)) return nullptr;

  // All points, but for those that walk an axis of the output only where they meet the tile.
  Odometer point = {.rank = state.updates.rank, .at = {}, .lo = {}, .hi = {}};
  int inner = -1;
  for (int d = 0; d < state.updates.rank; ++d) {
    point.hi[d] = state.is_indexed[d] ? state.updates.shape[d] : 1;
    if (state.is_indexed[d]) inner = d;
  }
  for (int axis = 0; axis < output.rank; ++axis) {
    const int64_t walk = state.walks[axis];
    if (walk < 0 || !state.is_indexed[walk]) continue;
    point.lo[walk] = args.lo[axis];
    point.hi[walk] = args.hi[axis];
  }
  if (point.empty()) return nullptr;
  const int64_t count = inner < 0 ? 1 : point.hi[inner] - point.lo[inner];
  if (inner >= 0) point.hi[inner] = point.lo[inner] + 1;
  point.begin();
  do {
    int64_t at[kMaxRank] = {};
    std::copy_n(point.at, point.rank, at);
    for (int64_t begin = 0; begin < count; begin += kIndexChunk) {
      lay_points(state, args, at, inner, std::min(kIndexChunk, count - begin));
    }
  } while (point.next());
  return nullptr;
}

}  // namespace

PreparedOp prepare_scatter(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {});
  const TensorView& updates = reader.input(1, "the updates", {.dtypes = x.dtype});
  const TensorView& output = reader.output({.dtypes = x.dtype});
  check_shape(output, "the output", shape_of(x));
  check_range(static_cast<int64_t>(spec.inputs.size()), 2, output.rank + 2, "the number of inputs");
  const auto combine = static_cast<Combine>(reader.integer(0, 4, "the combination"));
  const auto rank = static_cast<size_t>(output.rank);
  const auto walks = reader.list(rank, "walks"), components = reader.list(rank, "components");
  const auto starts = reader.list(rank, "starts");
  const auto index_axes = reader.axes(updates.rank, "index_axes");
  auto state = std::make_unique<ScatterState>();
  state->drops = reader.flag("the mark for dropping");
  reader.end_without_program();

  state->x = x;
  state->updates = updates;
  state->output = output;
  state->is_x_dense = is_dense(x);
  for (int d = 0; d < updates.rank; ++d) state->updates.strides[d] = used_stride(updates, d);
  state->components = read_index_operands(reader, 2, updates, index_axes, components);

  WalkingAxes axes(index_axes);
  for (int axis = 0; axis < output.rank; ++axis) {
    const int64_t walk = walks[axis], start = starts[axis];
    const std::string what = "axis " + std::to_string(axis) + " of x";
    if (walk != -1) axes.add(walk, updates, what);
    const int64_t size = walk < 0 ? 1 : updates.shape[walk];
    check_range(size, 0, output.shape[axis], "the extent of windows along " + what);
    check_range(start, 0, output.shape[axis] - size, "the start of windows along " + what);
    // The points along such an axis are cut to the tile, which needs them to be the axis.
    if (walk >= 0 && axes.indexed[walk] && (components[axis] != -1 || size != output.shape[axis])) {
      throw GraphError(what + " is walked by the points and begins elsewhere than at 0");
    }
    state->walks[axis] = walk;
    state->starts[axis] = start;
    state->sizes[axis] = size;
  }
  axes.check_all(updates, "the updates");
  std::copy_n(axes.indexed, kMaxRank, state->is_indexed);
  const Laying laying = laying_of(output.dtype, combine);
  state->combine = laying.window;
  state->lay_rows = have_rows(*state) ? laying.rows : nullptr;
  return {std::move(state), run_scatter, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
