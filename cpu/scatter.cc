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

#include "aspen_jax/engine/words.h"
#include "box.h"
#include "indices.h"
#include "shapes.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_scatter(const OpSpec& spec);

namespace {

enum class Combine : int64_t { kReplace = 0, kAdd = 1, kMultiply = 2, kMin = 3, kMax = 4 };

struct Component {
  DType dtype = DType::kI32;
  int64_t strides[kMaxRank] = {};  // along the axes of the updates
  int axis = -1;                   // of the output
};

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
  std::vector<Component> components;
  bool is_x_dense = false;       // so that x is all there where the output begins at the same address
  bool drops = false;            // windows that do not fit; else they are moved to where they do
  CombineBox combine = nullptr;  // replaces if null
  LayRows lay_rows = nullptr;    // where points have rows, along the last axes of the output
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

// How elements of this type are combined in boxes and, where points have rows, in those.
template <class T, Combine kCombine>
void choose(ScatterState& state, bool with_rows) {
  if constexpr (kCombine != Combine::kReplace) state.combine = combine_box<T, kCombine>;
  if (with_rows) state.lay_rows = lay_rows<T, kCombine>;
}
template <class T>
void choose(ScatterState& state, Combine combine, bool with_rows) {
  switch (combine) {
    case Combine::kReplace:
      return choose<T, Combine::kReplace>(state, with_rows);
    case Combine::kAdd:
      return choose<T, Combine::kAdd>(state, with_rows);
    case Combine::kMultiply:
      return choose<T, Combine::kMultiply>(state, with_rows);
    case Combine::kMin:
      return choose<T, Combine::kMin>(state, with_rows);
    case Combine::kMax:
      return choose<T, Combine::kMax>(state, with_rows);
  }
}

// Whether there is one index for each point, which says on which row of the output the point's row lies, and both rows are
// adjacent elements in the same order.
bool has_rows(const ScatterState& state) {
  const TensorView& output = state.output;
  const TensorView& updates = state.updates;
  if (state.components.size() != 1 || state.components[0].axis != 0 || state.walks[0] != -1) return false;
  if (updates.rank != output.rank || !state.is_indexed[0]) return false;
  int64_t stride = 1;
  for (int axis = output.rank - 1; axis > 0; --axis) {
    if (state.walks[axis] != axis || state.is_indexed[axis] || updates.shape[axis] != output.shape[axis]) return false;
    if (updates.shape[axis] > 1 && (updates.strides[axis] != stride || output.strides[axis] != stride)) return false;
    stride *= updates.shape[axis];
  }
  return true;
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
  const Component& component = state.components[0];
  const int64_t bytes = size_of(output.dtype), count = state.updates.shape[0], last = output.shape[0] - 1;
  for (int64_t begin = 0; begin < count; begin += kIndexChunk) {
    const int64_t size = std::min(kIndexChunk, count - begin);
    int64_t rows[kIndexChunk];
    load_indices(component.dtype,
                 static_cast<const std::byte*>(args.inputs[2]) + begin * component.strides[0] * size_of(component.dtype),
                 component.strides[0], size, rows);
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

const char* run_scatter(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const ScatterState*>(args.state);
  const TensorView& output = state.output;
  const int64_t bytes = size_of(output.dtype);
  int64_t extents[kMaxRank], from = 0, to = 0;
  for (int axis = 0; axis < output.rank; ++axis) {
    extents[axis] = args.hi[axis] - args.lo[axis];
    if (extents[axis] <= 0) return nullptr;
    from += args.lo[axis] * state.x.strides[axis];
    to += args.lo[axis] * output.strides[axis];
  }
  if (!state.is_x_dense || args.inputs[0] != args.output) {
    copy_box(bytes, output.rank, extents, static_cast<const std::byte*>(args.inputs[0]) + from * bytes, state.x.strides,
             static_cast<std::byte*>(args.output) + to * bytes, output.strides);
  }

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
  const int64_t first = inner < 0 ? 0 : point.lo[inner], count = inner < 0 ? 1 : point.hi[inner] - first;
  if (inner >= 0) point.hi[inner] = first + 1;
  point.begin();
  do {
    int64_t at[kMaxRank] = {};
    std::copy_n(point.at, point.rank, at);
    for (int64_t begin = 0; begin < count; begin += kIndexChunk) {
      const int64_t size = std::min(kIndexChunk, count - begin);
      int64_t loaded[kMaxRank][kIndexChunk];
      for (size_t k = 0; k < state.components.size(); ++k) {
        const Component& component = state.components[k];
        if (inner >= 0) at[inner] = first + begin;
        int64_t offset = 0;
        for (int d = 0; d < point.rank; ++d) offset += at[d] * component.strides[d];
        load_indices(component.dtype, static_cast<const std::byte*>(args.inputs[k + 2]) + offset * size_of(component.dtype),
                     inner < 0 ? 0 : component.strides[inner], size, loaded[k]);
      }
      for (int64_t i = 0; i < size; ++i) {
        if (inner >= 0) at[inner] = first + begin + i;
        int64_t starts[kMaxRank];
        std::copy_n(state.starts, output.rank, starts);
        bool fits = true;
        for (size_t k = 0; k < state.components.size(); ++k) {
          const int axis = state.components[k].axis;
          starts[axis] = std::clamp<int64_t>(loaded[k][i], 0, output.shape[axis] - state.sizes[axis]);
          fits &= starts[axis] == loaded[k][i];
        }
        if (fits || !state.drops) lay(state, args, starts, at);
      }
    }
  } while (point.next());
  return nullptr;
}

}  // namespace

PreparedOp prepare_scatter(const OpSpec& spec) {
  if (spec.inputs.size() < 2) throw GraphError("scatter needs an input and updates");
  auto state = std::make_unique<ScatterState>();
  const TensorView& x = spec.inputs[0];
  const TensorView& updates = spec.inputs[1];
  const TensorView& output = spec.output;
  check_rank(output, output.rank, "scatter's output");
  check_rank(x, output.rank, "scatter's input");
  check_rank(updates, updates.rank, "scatter's updates");
  if (!std::equal(x.shape, x.shape + x.rank, output.shape)) throw GraphError("scatter's input has not its output's shape");
  if (x.dtype != output.dtype || updates.dtype != output.dtype) throw GraphError("scatter's operands differ in dtype");
  state->x = x;
  state->updates = updates;
  state->output = output;
  state->is_x_dense = is_dense(x);
  for (int d = 0; d < updates.rank; ++d) state->updates.strides[d] = used_stride(updates, d);
  if (spec.inputs.size() - 2 > static_cast<size_t>(output.rank)) throw GraphError("scatter has more index operands than axes");
  state->components.resize(spec.inputs.size() - 2);

  WordReader words(spec.params);
  const auto combine = static_cast<Combine>(words.integer(0, 4, "scatter's combination"));
  const auto rank = static_cast<size_t>(output.rank);
  const auto walks = words.list(rank, "scatter's walks");
  const auto components = words.list(rank, "scatter's components");
  const auto starts = words.list(rank, "scatter's starts");
  const auto index_axes = words.list();
  state->drops = words.integer(0, 1, "scatter's mark for dropping") == 1;
  words.integer(0, 0, "scatter's mark for an epilogue (it cannot have one)");
  if (!words.done()) throw GraphError("there are words after scatter's parameters");

  bool is_known[kMaxRank] = {};  // whether an axis of the updates walks something
  int64_t previous = -1;
  for (const int64_t axis : index_axes) {
    if (axis <= previous || axis >= updates.rank) {
      throw GraphError("scatter's index axis " + std::to_string(axis) + " is out of range or not ascending");
    }
    is_known[axis] = state->is_indexed[axis] = true;
    previous = axis;
  }
  for (size_t k = 0; k < state->components.size(); ++k) {
    const TensorView& index = spec.inputs[k + 2];
    const std::string what = "index " + std::to_string(k) + " of scatter";
    check_index(index, what);
    check_rank(index, static_cast<int>(index_axes.size()), what.c_str());
    state->components[k].dtype = index.dtype;
    for (int d = 0; d < index.rank; ++d) {
      if (index.shape[d] != updates.shape[index_axes[d]]) {
        throw GraphError(what + " has shape " + describe(index) + ", which does not fit the updates " + describe(updates));
      }
      state->components[k].strides[index_axes[d]] = used_stride(index, d);
    }
  }
  bool is_walked[kMaxRank] = {};
  for (int axis = 0; axis < output.rank; ++axis) {
    const int64_t walk = walks[axis], which = components[axis], start = starts[axis];
    const std::string what = "scatter's axis " + std::to_string(axis);
    if (walk < -1 || walk >= updates.rank || (walk >= 0 && is_walked[walk])) {
      throw GraphError(what + " is walked by axis " + std::to_string(walk) + " of the updates " + describe(updates));
    }
    const int64_t size = walk < 0 ? 1 : updates.shape[walk];
    if (walk >= 0) is_known[walk] = is_walked[walk] = true;
    if (start < 0 || size > output.shape[axis] || start > output.shape[axis] - size) {
      throw GraphError(what + " has windows of " + std::to_string(size) + " elements from " + std::to_string(start) + " on, of " +
                       std::to_string(output.shape[axis]));
    }
    // The points along such an axis are cut to the tile, which needs them to be the axis.
    if (walk >= 0 && state->is_indexed[walk] && (which != -1 || start != 0 || size != output.shape[axis])) {
      throw GraphError(what + " is walked by the points and begins elsewhere than at 0");
    }
    state->walks[axis] = walk;
    state->starts[axis] = start;
    state->sizes[axis] = size;
    if (which == -1) continue;
    if (which < 0 || which >= static_cast<int64_t>(state->components.size()) || state->components[which].axis >= 0) {
      throw GraphError(what + " begins at index operand " + std::to_string(which) + ", which there is not, or which is taken");
    }
    state->components[which].axis = axis;
  }
  for (size_t k = 0; k < state->components.size(); ++k) {
    if (state->components[k].axis < 0) throw GraphError("index " + std::to_string(k) + " of scatter has no axis");
  }
  for (int axis = 0; axis < updates.rank; ++axis) {
    if (!is_known[axis]) throw GraphError("axis " + std::to_string(axis) + " of scatter's updates walks nothing");
  }
  if (output.dtype == DType::kF32) {
    choose<float>(*state, combine, has_rows(*state));
  } else if (output.dtype == DType::kI32) {
    choose<int32_t>(*state, combine, has_rows(*state));
  } else if (combine != Combine::kReplace) {
    throw GraphError("scatter combines no elements of dtype number " + std::to_string(static_cast<int>(output.dtype)) +
                     "; this kernel combines float32 and int32, leave others to XLA");
  }
  return {std::move(state), run_scatter, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
