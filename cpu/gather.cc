// The kernel "gather": windows of a tensor, each beginning where integer operands say. Elements of any dtype are moved as bytes.
//
// An axis of x is walked by an axis of the output, has a start from an index operand, or both. An index never leads outside x:
// it is clamped, or (where the op fills) its whole window is the fill value.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "aspen_jax/engine/words.h"
#include "box.h"
#include "elements.h"
#include "indices.h"
#include "shapes.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_gather(const OpSpec& spec);

namespace {

// One index operand.
struct Component {
  DType dtype = DType::kI32;
  int64_t strides[kMaxRank] = {};  // along the output's axes
  int64_t limit = 0;               // the last start at which a window fits
  int64_t x_stride = 0;            // of the axis of x that it is the start along
};

struct GatherState final : OpState {
  TensorView output;
  int64_t x_strides[kMaxRank] = {};  // along the output's axes
  bool is_indexed[kMaxRank] = {};    // the output's axes that walk the index operands, not a window
  std::vector<Component> components;
  bool fills = false;
  alignas(8) std::byte fill[8] = {};  // read as an element
};

constexpr int64_t kNoStrides[kMaxRank] = {};
constexpr int64_t kOutside = std::numeric_limits<int64_t>::min();

// Offsets in x of `count` windows from `at` on, one for each step along output axis `axis` (-1: there is one window).
void find_windows(const GatherState& state, const TileArgs& args, const int64_t* at, int axis, int64_t count, int64_t* offsets) {
  const int64_t step = axis < 0 ? 0 : state.x_strides[axis];
  int64_t first = 0;
  for (int d = 0; d < state.output.rank; ++d) first += state.is_indexed[d] ? at[d] * state.x_strides[d] : 0;
  for (int64_t i = 0; i < count; ++i) offsets[i] = first + i * step;
  for (size_t k = 0; k < state.components.size(); ++k) {
    const Component& component = state.components[k];
    int64_t from = 0;
    for (int d = 0; d < state.output.rank; ++d) from += at[d] * component.strides[d];
    int64_t starts[kIndexChunk];
    load_indices(component.dtype, static_cast<const std::byte*>(args.inputs[k + 1]) + from * size_of(component.dtype),
                 axis < 0 ? 0 : component.strides[axis], count, starts);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t start = std::clamp<int64_t>(starts[i], 0, component.limit);
      const bool is_outside = offsets[i] == kOutside || (state.fills && start != starts[i]);
      offsets[i] = is_outside ? kOutside : offsets[i] + start * component.x_stride;
    }
  }
}

const char* run_gather(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const GatherState*>(args.state);
  const TensorView& output = state.output;
  const int64_t bytes = size_of(output.dtype);

  // The box falls apart into the points that indices are read for and the window that is copied for each.
  Odometer point = {.rank = output.rank, .at = {}, .lo = {}, .hi = {}};
  int64_t extents[kMaxRank], from_strides[kMaxRank], to_strides[kMaxRank];
  int window_rank = 0, inner = -1;
  int64_t elements = 1, x_offset = 0, out_offset = 0;
  for (int axis = 0; axis < output.rank; ++axis) {
    const int64_t lo = args.lo[axis], hi = args.hi[axis];
    if (lo >= hi) return nullptr;
    point.lo[axis] = lo;
    point.hi[axis] = hi;
    if (state.is_indexed[axis]) {
      inner = axis;
      continue;
    }
    point.hi[axis] = lo + 1;
    extents[window_rank] = hi - lo;
    from_strides[window_rank] = state.x_strides[axis];
    to_strides[window_rank] = output.strides[axis];
    ++window_rank;
    elements *= hi - lo;
    x_offset += lo * state.x_strides[axis];
  }
  const bool is_run = window_rank == 1 && from_strides[0] == 1 && to_strides[0] == 1;

  // The innermost of the points' axes is resolved in chunks.
  const int64_t count = inner < 0 ? 1 : args.hi[inner] - args.lo[inner];
  const int64_t out_step = inner < 0 ? 0 : output.strides[inner];
  if (inner >= 0) point.hi[inner] = point.lo[inner] + 1;
  point.begin();
  do {
    int64_t at[kMaxRank];
    std::copy_n(point.at, output.rank, at);
    for (int64_t begin = 0; begin < count; begin += kIndexChunk) {
      const int64_t size = std::min(kIndexChunk, count - begin);
      if (inner >= 0) at[inner] = args.lo[inner] + begin;
      int64_t offsets[kIndexChunk];
      find_windows(state, args, at, inner, size, offsets);
      out_offset = 0;
      for (int axis = 0; axis < output.rank; ++axis) out_offset += at[axis] * output.strides[axis];
      const auto* const x = static_cast<const std::byte*>(args.inputs[0]) + x_offset * bytes;
      auto* const out = static_cast<std::byte*>(args.output) + out_offset * bytes;
      if (elements == 1) {
        visit_size(bytes, [&]<class T>(T fill) {
          std::memcpy(&fill, state.fill, sizeof fill);
          for (int64_t i = 0; i < size; ++i) {
            reinterpret_cast<T*>(out)[i * out_step] = offsets[i] == kOutside ? fill : reinterpret_cast<const T*>(x)[offsets[i]];
          }
        });
        continue;
      }
      for (int64_t i = 0; i < size; ++i) {
        std::byte* const to = out + i * out_step * bytes;
        if (offsets[i] == kOutside) {
          copy_box(bytes, window_rank, extents, state.fill, kNoStrides, to, to_strides);
        } else if (is_run) {
          std::memcpy(to, x + offsets[i] * bytes, static_cast<size_t>(elements * bytes));
        } else {
          copy_box(bytes, window_rank, extents, x + offsets[i] * bytes, from_strides, to, to_strides);
        }
      }
    }
  } while (point.next());
  return nullptr;
}

}  // namespace

PreparedOp prepare_gather(const OpSpec& spec) {
  if (spec.inputs.empty()) throw GraphError("gather needs an input");
  auto state = std::make_unique<GatherState>();
  const TensorView& x = spec.inputs[0];
  const TensorView& output = spec.output;
  check_rank(x, x.rank, "gather's input");
  check_rank(output, output.rank, "gather's output");
  if (x.dtype != output.dtype) throw GraphError("gather's output has not its input's dtype");
  state->output = output;
  state->components.resize(spec.inputs.size() - 1);

  WordReader words(spec.params);
  const auto rank = static_cast<size_t>(x.rank);
  const auto walks = words.list(rank, "gather's walks");
  const auto components = words.list(rank, "gather's components");
  const auto sizes = words.list(rank, "gather's sizes");
  const auto index_axes = words.list();
  state->fills = words.integer(0, 1, "gather's mark for filling") == 1;
  const int64_t fill = words.integer();
  std::memcpy(state->fill, &fill, sizeof fill);  // little endian: the low bytes come first
  words.integer(0, 0, "gather's mark for an epilogue (it cannot have one)");
  if (!words.done()) throw GraphError("there are words after gather's parameters");

  bool is_known[kMaxRank] = {};  // whether something says how long the output's axis is
  int64_t previous = -1;
  for (const int64_t axis : index_axes) {
    if (axis <= previous || axis >= output.rank) {
      throw GraphError("gather's index axis " + std::to_string(axis) + " is out of range or not ascending");
    }
    is_known[axis] = state->is_indexed[axis] = true;
    previous = axis;
  }
  for (size_t k = 0; k < state->components.size(); ++k) {
    const TensorView& index = spec.inputs[k + 1];
    const std::string what = "index " + std::to_string(k) + " of gather";
    check_index(index, what);
    check_rank(index, static_cast<int>(index_axes.size()), what.c_str());
    Component& component = state->components[k];
    component.dtype = index.dtype;
    component.limit = -1;
    for (int d = 0; d < index.rank; ++d) {
      if (index.shape[d] != output.shape[index_axes[d]]) {
        throw GraphError(what + " has shape " + describe(index) + ", which does not fit the output " + describe(output));
      }
      component.strides[index_axes[d]] = used_stride(index, d);
    }
  }
  for (int axis = 0; axis < x.rank; ++axis) {
    const int64_t walk = walks[axis], size = sizes[axis], which = components[axis];
    const std::string what = "gather's axis " + std::to_string(axis);
    if (size < 0 || size > x.shape[axis]) {
      throw GraphError(what + " has windows of " + std::to_string(size) + " elements of " + std::to_string(x.shape[axis]));
    }
    const int64_t stride = used_stride(x, axis);
    if (walk == -1) {
      if (size != 1) throw GraphError(what + " is dropped from windows of " + std::to_string(size) + " elements, not 1");
    } else {
      if (walk < 0 || walk >= output.rank || output.shape[walk] != size || state->x_strides[walk] != 0) {
        throw GraphError(what + " is walked by axis " + std::to_string(walk) + " of the output " + describe(output));
      }
      is_known[walk] = true;
      state->x_strides[walk] = stride;
    }
    if (which == -1) continue;
    if (which < 0 || which >= static_cast<int64_t>(state->components.size()) || state->components[which].limit >= 0) {
      throw GraphError(what + " begins at index operand " + std::to_string(which) + ", which there is not, or which is taken");
    }
    state->components[which].limit = x.shape[axis] - size;
    state->components[which].x_stride = stride;
  }
  for (size_t k = 0; k < state->components.size(); ++k) {
    if (state->components[k].limit < 0) throw GraphError("index " + std::to_string(k) + " of gather has no axis");
  }
  for (int axis = 0; axis < output.rank; ++axis) {
    if (!is_known[axis]) throw GraphError("nothing walks axis " + std::to_string(axis) + " of gather's output");
  }
  return {std::move(state), run_gather, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
