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

#include "box.h"
#include "elements.h"
#include "indices.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_gather(const OpSpec& spec);

namespace {

// A component of an index, walked by the output's axes.
struct Component : IndexOperand {
  int64_t limit = 0;     // the last start at which a window fits
  int64_t x_stride = 0;  // of the axis of x that it is the start along
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
    int64_t starts[kIndexChunk];
    component.load(args.inputs[k + 1], at, state.output.rank, axis, count, starts);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t start = std::clamp<int64_t>(starts[i], 0, component.limit);
      const bool is_outside = offsets[i] == kOutside || (state.fills && start != starts[i]);
      offsets[i] = is_outside ? kOutside : offsets[i] + start * component.x_stride;
    }
  }
}

// What is copied for each point: the part of a window that the tile has.
struct Window {
  int64_t bytes;  // of an element
  int rank = 0;
  int64_t extents[kMaxRank], from_strides[kMaxRank], to_strides[kMaxRank];
  int64_t elements = 1;
  int64_t x_offset = 0;  // of the part, in the window

  void add_axis(int64_t extent, int64_t from_stride, int64_t to_stride) {
    extents[rank] = extent;
    from_strides[rank] = from_stride;
    to_strides[rank] = to_stride;
    ++rank;
    elements *= extent;
  }
  bool is_run() const { return rank == 1 && from_strides[0] == 1 && to_strides[0] == 1; }
};

// Copies the windows at `offsets` of x to places that are `out_step` elements apart.
void copy_windows(const GatherState& state, const Window& window, const void* x, const int64_t* offsets, int64_t count,
                  std::byte* out, int64_t out_step) {
  const int64_t bytes = window.bytes;
  const auto* const from = static_cast<const std::byte*>(x) + window.x_offset * bytes;
  if (window.elements == 1) {
    return visit_size(bytes, [&]<class T>(T fill) {
      std::memcpy(&fill, state.fill, sizeof fill);
      const T* const elements = reinterpret_cast<const T*>(from);
      for (int64_t i = 0; i < count; ++i) {
        reinterpret_cast<T*>(out)[i * out_step] = offsets[i] == kOutside ? fill : elements[offsets[i]];
      }
    });
  }
  const bool is_run = window.is_run();
  for (int64_t i = 0; i < count; ++i, out += out_step * bytes) {
    if (offsets[i] == kOutside) {
      copy_box(bytes, window.rank, window.extents, state.fill, kNoStrides, out, window.to_strides);
    } else if (is_run) {
      std::memcpy(out, from + offsets[i] * bytes, static_cast<size_t>(window.elements * bytes));
    } else {
      copy_box(bytes, window.rank, window.extents, from + offsets[i] * bytes, window.from_strides, out, window.to_strides);
    }
  }
}

const char* run_gather(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const GatherState*>(args.state);
  const TensorView& output = state.output;

  // The box falls apart into the points that indices are read for and the window that is copied for each.
  Odometer point = {.rank = output.rank, .at = {}, .lo = {}, .hi = {}};
  Window window = {.bytes = size_of(output.dtype), .extents = {}, .from_strides = {}, .to_strides = {}};
  int inner = -1;
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
    window.add_axis(hi - lo, state.x_strides[axis], output.strides[axis]);
    window.x_offset += lo * state.x_strides[axis];
  }

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
      int64_t to = 0;
      for (int axis = 0; axis < output.rank; ++axis) to += at[axis] * output.strides[axis];
      copy_windows(state, window, args.inputs[0], offsets, size, static_cast<std::byte*>(args.output) + to * window.bytes,
                   out_step);
    }
  } while (point.next());
  return nullptr;
}

}  // namespace

PreparedOp prepare_gather(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {});
  const TensorView& output = reader.output({.dtypes = x.dtype});
  const auto rank = static_cast<size_t>(x.rank);
  const auto walks = reader.list(rank, "walks"), components = reader.list(rank, "components");
  const auto sizes = reader.list(rank, "sizes");
  const auto index_axes = reader.axes(output.rank, "index_axes");
  auto state = std::make_unique<GatherState>();
  state->output = output;
  state->fills = reader.flag("the mark for filling");
  const int64_t fill = reader.integer();
  std::memcpy(state->fill, &fill, sizeof fill);  // little endian: the low bytes come first
  reader.end_without_program();

  WalkingAxes axes(index_axes);
  for (int axis = 0; axis < x.rank; ++axis) {
    const int64_t walk = walks[axis], size = sizes[axis];
    const std::string what = "axis " + std::to_string(axis) + " of x";
    check_range(size, 0, x.shape[axis], "the extent of windows along " + what);
    if (walk == -1) {
      check_range(size, 1, 1, "the extent of windows along " + what + ", which nothing walks,");
    } else {
      axes.add(walk, output, what);
      check_extent(output, "the output", static_cast<int>(walk), size);
      state->x_strides[walk] = used_stride(x, axis);
    }
  }
  axes.check_all(output, "the output");
  std::copy_n(axes.indexed, kMaxRank, state->is_indexed);
  for (const IndexOperand& operand : read_index_operands(reader, 1, output, index_axes, components)) {
    const int64_t limit = x.shape[operand.axis] - sizes[static_cast<size_t>(operand.axis)];
    state->components.push_back({operand, limit, used_stride(x, operand.axis)});
  }
  return {std::move(state), run_gather, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
