// The kernels "select_and_scatter_add" and "select_and_gather_add": the derivatives of pooling by a maximum or a minimum.
//
// A window of x chooses one of its elements: it walks them in order and takes the next one unless the one it has is at least as
// large (or as small). So the first of equal ones is chosen, and what follows a NaN. "select_and_scatter_add" adds the window's
// element of a second tensor to where the chosen one lies; "select_and_gather_add" gives the second tensor's element there, or 0
// where no element is larger than minus infinity (or smaller than infinity).
//
// Where the last axis takes no part in the window and its elements are adjacent (channels, in NHWC), a vector of channels
// chooses at once. Otherwise each window is walked by itself.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "box.h"
#include "shapes.h"
#include "spec_reader.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_select_and_scatter_add(const OpSpec& spec);
PreparedOp prepare_select_and_gather_add(const OpSpec& spec);

namespace {

// An element of a window, as offsets from the window's first one; nowhere in x where it is padding, and nowhere in what is
// scattered to where it is outside of the box.
struct Tap {
  int64_t x;
  int64_t other;
};
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::min();

// One axis: of x, of the tensor of x's shape that is scattered to or gathered from ("other"), and of the windows.
struct Axis {
  int64_t extent;
  int64_t x_stride;
  int64_t other_stride;
  int64_t windows;
  int64_t windows_stride;
  int64_t window;
  int64_t step;
  int64_t lo;  // padding
};

struct SelectState final : OpState {
  int rank = 0;
  Axis axes[kMaxRank] = {};
  bool is_max = false;
  bool over_channels = false;
  std::vector<Tap> taps;  // of a window without padding
};

// The taps of the window whose first element is `begin`; `outside(axis, position)` says what is nowhere in "other".
template <class Outside>
void list_taps(const SelectState& state, const int64_t* begin, Outside outside, Tap* taps) {
  Odometer tap = {.rank = state.rank, .at = {}, .lo = {}, .hi = {}};
  for (int axis = 0; axis < state.rank; ++axis) tap.hi[axis] = state.axes[axis].window;
  tap.begin();
  do {
    Tap offsets = {0, 0};
    bool is_padding = false, is_outside = false;
    for (int d = 0; d < state.rank; ++d) {
      const Axis& axis = state.axes[d];
      const int64_t position = begin[d] + tap.at[d];
      is_padding |= position < 0 || position >= axis.extent;
      is_outside |= outside(d, position);
      offsets.x += tap.at[d] * axis.x_stride;
      offsets.other += tap.at[d] * axis.other_stride;
    }
    *taps++ = {is_padding ? kNowhere : offsets.x, is_padding || is_outside ? kNowhere : offsets.other};
  } while (tap.next());
}

template <bool kIsMax>
constexpr float kPadding = kIsMax ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();

// The number of the tap that a window chooses. If `kMayHaveNone`, it is -1 where no element is better than padding.
template <bool kIsMax, bool kMayHaveNone>
ASPEN_INLINE int32_t chosen(const Tap* taps, int32_t count, const float* x) {
  const auto element = [&](int32_t t) { return taps[t].x == kNowhere ? kPadding<kIsMax> : x[taps[t].x]; };
  int32_t best_tap = kMayHaveNone ? -1 : 0;
  float best = kMayHaveNone ? kPadding<kIsMax> : element(0);
  for (int32_t t = kMayHaveNone ? 0 : 1; t < count; ++t) {
    const float next = element(t);
    const bool stays = kIsMax ? best >= next : best <= next;
    best = stays ? best : next;
    best_tap = stays ? best_tap : t;
  }
  return best_tap;
}

// The same for `lanes` windows whose elements are adjacent.
template <bool kIsMax, bool kMayHaveNone>
ASPEN_INLINE Ints chosen(const Tap* taps, int32_t count, const float* x, int lanes) {
  const auto elements = [&](int32_t t) __attribute__((always_inline)) {
    if (taps[t].x == kNowhere) return broadcast(kPadding<kIsMax>);
    return lanes == kLanes ? load(x + taps[t].x) : load_partial(x + taps[t].x, lanes);
  };
  Ints best_tap = broadcast(kMayHaveNone ? -1 : 0);
  Floats best = kMayHaveNone ? broadcast(kPadding<kIsMax>) : elements(0);
  for (int32_t t = kMayHaveNone ? 0 : 1; t < count; ++t) {
    const Floats next = elements(t);
    const Ints stays = kIsMax ? best >= next : best <= next;
    best = stays ? best : next;
    best_tap = stays ? best_tap : broadcast(t);
  }
  return best_tap;
}

// Calls visit(taps, offsets of the window's first element in x and in "other", offset of the window) for each window of
// `windows`, or for the first channel of those that share a place.
template <class Outside, class Visitor>
ASPEN_INLINE void for_each_window(const SelectState& state, Odometer& windows, Outside outside, Tap* scratch, Visitor visit) {
  windows.begin();
  do {
    int64_t begin[kMaxRank];
    int64_t x = 0, other = 0, window = 0;
    bool is_whole = true;
    for (int d = 0; d < state.rank; ++d) {
      const Axis& axis = state.axes[d];
      begin[d] = windows.at[d] * axis.step - axis.lo;
      const int64_t last = begin[d] + axis.window - 1;
      is_whole &= begin[d] >= 0 && last < axis.extent && !outside(d, begin[d]) && !outside(d, last);
      x += begin[d] * axis.x_stride;
      other += begin[d] * axis.other_stride;
      window += windows.at[d] * axis.windows_stride;
    }
    if (!is_whole) list_taps(state, begin, outside, scratch);
    visit(is_whole ? state.taps.data() : scratch, x, other, window);
  } while (windows.next());
}

template <bool kIsMax>
const char* run_scatter(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const SelectState*>(args.state);
  const auto* const source = static_cast<const float*>(args.inputs[0]);
  const auto* const x = static_cast<const float*>(args.inputs[1]);
  auto* const out = static_cast<float*>(args.output);
  const int last = state.rank - 1;
  Odometer row = {.rank = state.rank, .at = {}, .lo = {}, .hi = {}};
  Odometer windows = row;
  for (int d = 0; d < state.rank; ++d) {
    const Axis& axis = state.axes[d];
    if (args.lo[d] >= args.hi[d]) return nullptr;
    row.lo[d] = args.lo[d];
    row.hi[d] = d == last ? args.lo[d] + 1 : args.hi[d];
    // The windows that reach into the box.
    const int64_t first = args.lo[d] + axis.lo - axis.window + 1;
    windows.lo[d] = first <= 0 ? 0 : (first + axis.step - 1) / axis.step;
    windows.hi[d] = args.hi[d] - 1 + axis.lo < 0 ? 0 : std::min(axis.windows, (args.hi[d] - 1 + axis.lo) / axis.step + 1);
  }
  row.begin();
  do {
    int64_t to = 0;
    for (int d = 0; d < state.rank; ++d) to += row.at[d] * state.axes[d].other_stride;
    std::fill_n(out + to, args.hi[last] - args.lo[last], 0.0f);
  } while (row.next());
  const int64_t channels = state.over_channels ? windows.hi[last] - windows.lo[last] : 1;
  if (state.over_channels) windows.hi[last] = std::min(windows.hi[last], windows.lo[last] + 1);
  if (windows.empty()) return nullptr;
  const auto outside = [&](int axis, int64_t position) { return position < args.lo[axis] || position >= args.hi[axis]; };
  const auto count = static_cast<int32_t>(state.taps.size());
  for_each_window(state, windows, outside, reinterpret_cast<Tap*>(args.scratch),
                  [&](const Tap* taps, int64_t from_x, int64_t to, int64_t window) {
                    if (!state.over_channels) {
                      const Tap& tap = taps[chosen<kIsMax, false>(taps, count, x + from_x)];
                      if (tap.other != kNowhere) out[to + tap.other] += source[window];
                      return;
                    }
                    for (int64_t c = 0; c < channels; c += kLanes) {
                      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, channels - c));
                      const Ints best = chosen<kIsMax, false>(taps, count, x + from_x + c, lanes);
                      const Floats given = load_partial(source + window + c, lanes);
                      for (int32_t t = 0; t < count; ++t) {
                        if (taps[t].other == kNowhere) continue;
                        float* const place = out + to + taps[t].other + c;
                        store_partial(place, load_partial(place, lanes) + (best == t ? given : Floats{}), lanes);
                      }
                    }
                  });
  return nullptr;
}

template <bool kIsMax>
const char* run_gather(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const SelectState*>(args.state);
  const auto* const other = static_cast<const float*>(args.inputs[0]);
  const auto* const x = static_cast<const float*>(args.inputs[1]);
  auto* const out = static_cast<float*>(args.output);
  const int last = state.rank - 1;
  Odometer windows = {.rank = state.rank, .at = {}, .lo = {}, .hi = {}};
  for (int d = 0; d < state.rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
    windows.lo[d] = args.lo[d];
    windows.hi[d] = state.over_channels && d == last ? args.lo[d] + 1 : args.hi[d];
  }
  const int64_t channels = state.over_channels ? args.hi[last] - args.lo[last] : 1;
  const auto count = static_cast<int32_t>(state.taps.size());
  for_each_window(
      state, windows, [](int, int64_t) { return false; }, reinterpret_cast<Tap*>(args.scratch),
      [&](const Tap* taps, int64_t from_x, int64_t from, int64_t window) {
        if (!state.over_channels) {
          const int32_t best = chosen<kIsMax, true>(taps, count, x + from_x);
          out[window] = best < 0 || taps[best].other == kNowhere ? 0.0f : other[from + taps[best].other];
          return;
        }
        for (int64_t c = 0; c < channels; c += kLanes) {
          const int lanes = static_cast<int>(std::min<int64_t>(kLanes, channels - c));
          const Ints best = chosen<kIsMax, true>(taps, count, x + from_x + c, lanes);
          Floats result = {};
          for (int32_t t = 0; t < count; ++t) {
            if (taps[t].other == kNowhere) continue;
            result = best == t ? load_partial(other + from + taps[t].other + c, lanes) : result;
          }
          store_partial(out + window + c, result, lanes);
        }
      });
  return nullptr;
}

// A window of more elements than this falls back: its taps are listed.
constexpr int64_t kMostTaps = 4096;

// Reads the parameters, where `windows` has an element a window, and x and "other" have one shape.
std::unique_ptr<SelectState> read_state(SpecReader& reader, const TensorView& x, const TensorView& other,
                                        const TensorView& windows) {
  auto state = std::make_unique<SelectState>();
  check_shape(other, "the tensor beside x", shape_of(x));
  state->rank = x.rank;
  const auto rank = static_cast<size_t>(x.rank);
  state->is_max = reader.integer(1, 2, "the kind") == 1;
  const auto window = reader.list(rank, 1, kMostTaps, "window");
  const auto strides = reader.list(rank, 1, kMaxExtent, "strides");
  const auto padding_lo = reader.list(rank, 0, kMaxExtent, "padding_lo");
  const auto padding_hi = reader.list(rank, 0, kMaxExtent, "padding_hi");
  reader.end_without_program();
  int64_t count = 1;
  for (size_t i = 0; i < rank; ++i) {
    const auto d = static_cast<int>(i);
    count *= window[i];
    check_range(count, 1, kMostTaps, "the number of elements of a window");
    const int64_t extent = num_windows(x.shape[d] + padding_lo[i] + padding_hi[i], window[i], strides[i]);
    check_extent(windows, "the tensor of windows", d, extent);
    state->axes[i] = {x.shape[d], used_stride(x, d), used_stride(other, d), extent, used_stride(windows, d),
                      window[i],  strides[i],        padding_lo[i]};
  }
  const Axis& channels = state->axes[rank - 1];
  state->over_channels = channels.window == 1 && channels.step == 1 && channels.lo == 0 && channels.extent == channels.windows &&
                         channels.extent > 1 && channels.x_stride == 1 && channels.other_stride == 1 &&
                         channels.windows_stride == 1;
  state->taps.resize(static_cast<size_t>(count));
  // As in the middle of an x without end.
  const int64_t begin[kMaxRank] = {};
  list_taps(*state, begin, [](int, int64_t) { return false; }, state->taps.data());
  return state;
}

}  // namespace

PreparedOp prepare_select_and_scatter_add(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(1, "x", {.rank = {1, kMaxRank}, .dtypes = DType::kF32});
  const TensorView& source = reader.input(0, "the source", {.rank = x.rank, .dtypes = DType::kF32});
  const TensorView& output = reader.output({.dtypes = DType::kF32, .dense = true});
  reader.end_inputs(2);
  auto state = read_state(reader, x, output, source);
  const size_t scratch = state->taps.size() * sizeof(Tap);
  const RunTile run = state->is_max ? run_scatter<true> : run_scatter<false>;
  return {std::move(state), run, scratch};
}

PreparedOp prepare_select_and_gather_add(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(1, "x", {.rank = {1, kMaxRank}, .dtypes = DType::kF32});
  const TensorView& tangents = reader.input(0, "the tangents", {.dtypes = DType::kF32});
  const TensorView& output = reader.output({.rank = x.rank, .dtypes = DType::kF32, .dense = true});
  reader.end_inputs(2);
  auto state = read_state(reader, x, tangents, output);
  const size_t scratch = state->taps.size() * sizeof(Tap);
  const RunTile run = state->is_max ? run_gather<true> : run_gather<false>;
  return {std::move(state), run, scratch};
}

}  // namespace aspen::cpu::ASPEN_TARGET
