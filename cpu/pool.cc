// The kernel "pool": jax.lax.reduce_window with one of four combinations, then an epilogue.
//
// Where the last axis takes no part in the window and its elements are adjacent (channels, in NHWC), a few vectors of channels
// stay in registers while the window is walked. Where the window covers adjacent elements (NCHW), its other axes are combined
// first, for a whole line of x, by the same code. Otherwise each output element is computed by itself. Floats of 16 bits are
// widened when they are read.
#include "pool.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "accumulate.h"
#include "epilogue.h"
#include "finish.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_pool(const OpSpec& spec);

namespace {

// The taps of a window along an axis that fall on elements of x: x indices first, first + step, ... (count of them).
struct Taps {
  int64_t first;
  int64_t count;
};

// One axis of the window. Position p of the dilated, padded x holds element (p - lo) / base where base divides p - lo.
struct Axis {
  int64_t extent;  // of x
  int64_t stride;  // of x, in elements
  int64_t window;
  int64_t step;      // of the window
  int64_t lo;        // padding
  int64_t base;      // base dilation
  int64_t dilation;  // window dilation
  int64_t divisor;   // gcd(dilation, base)
  int64_t inverse;   // of dilation / divisor modulo base / divisor
  int64_t tap_step;  // x elements between successive taps

  Taps taps(int64_t out) const {
    // Tap k reads position start + k * dilation, counted from the first element of x.
    const int64_t start = out * step - lo;
    const int64_t last = (extent - 1) * base;
    if (extent == 0 || start > last || (divisor > 1 && start % divisor != 0)) return {0, 0};
    const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
    const int64_t end = std::min(window, (dilation == 1 ? last - start : (last - start) / dilation) + 1);
    if (base == 1) return begin < end ? Taps{start + begin * dilation, end - begin} : Taps{0, 0};
    // Of these, tap k meets an element if start + k * dilation = 0 modulo base: for one k modulo base / divisor.
    const int64_t period = base / divisor;
    int64_t k = 0;
    if (period > 1) {
      const int64_t wanted = (-(start / divisor) % period + period) % period * inverse % period;
      k = ((wanted - begin) % period + period) % period;
    }
    k += begin;
    if (k >= end) return {0, 0};
    return {(start + k * dilation) / base, (end - 1 - k) / period + 1};
  }
};

struct PoolState final : OpState {
  Combination kind;
  int rank;
  Axis axes[kMaxRank];
  int64_t row_stride;  // of the output, along the axis before the last
  bool over_channels;
  bool over_lines;  // else, if neither, element by element
  // Index i of this axis of x lies at i modulo `ring`.
  int ring_axis = -1;
  int64_t ring = 0;
  Epilogue epilogue;

  // Whether the windows of `count` positions from `first` on lie within x, each a step behind the one before.
  bool are_alike(int axis, int64_t first, int count) const {
    const Axis& a = axes[axis];
    return a.base == 1 && first * a.step >= a.lo && (first + count - 1) * a.step - a.lo + (a.window - 1) * a.dilation < a.extent;
  }
};

constexpr DTypes kPooled = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32};

constexpr int64_t kBlockElements = 2048;  // of accumulators: 8 KiB
constexpr int64_t kTapColumns = 512;      // of the output, in a block whose window covers the last axis
constexpr int64_t kLineElements = 4096;   // of x

int64_t inverse_modulo(int64_t x, int64_t modulus) {
  int64_t r0 = modulus, r1 = x % modulus, t0 = 0, t1 = 1;
  while (r1 != 0) {
    const int64_t q = r0 / r1;
    std::tie(r0, r1) = std::pair(r1, r0 - q * r1);
    std::tie(t0, t1) = std::pair(t1, t0 - q * t1);
  }
  return (t0 % modulus + modulus) % modulus;
}

// A walk over all taps of all axes but the innermost `inner`, which the visitor walks itself: visit(pointer to its first tap).
template <class T, class Visitor>
ASPEN_INLINE void for_each_tap_row(const Axis* axes, const Taps* taps, int inner, const T* x, Visitor visit) {
  int64_t index[kMaxRank] = {};
  for (int axis = 0; axis <= inner; ++axis) {
    if (taps[axis].count == 0) return;
  }
  for (int axis = 0; axis <= inner; ++axis) {
    x += taps[axis].first * axes[axis].stride;
  }
  for (;;) {
    visit(x);
    int axis = inner - 1;
    for (; axis >= 0; --axis) {
      const int64_t stride = axes[axis].tap_step * axes[axis].stride;
      x += stride;
      if (++index[axis] < taps[axis].count) break;
      x -= stride * taps[axis].count;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Where results go: positions of the output, `apart` elements from each other, and what is done to them in registers.
template <class Sum>
struct Place {
  Sum* out;  // the first channel of the first position
  int64_t apart;
  const Finish* finish;
  int64_t row;  // of the first position in the block that `finish` is for

  Place behind(int64_t positions) const { return {out + positions * apart, apart, finish, row + positions}; }
};

// `finish_in_registers` with one copy for all callers that have as many sums: in each of them it would make this file take
// minutes to compile with sanitizers. `lanes` of each vector exist.
template <int kPositions, int kVectors>
[[gnu::noinline]] void finish_sums(const Finish& finish, int64_t row, int64_t column, Floats (&sums)[kPositions][kVectors],
                                   int lanes) {
  Floats sum[kPositions][kVectors];  // an operand cannot lie here, so that the steps need no memory between them
#pragma GCC unroll 16
  for (int p = 0; p < kPositions; ++p) std::copy_n(sums[p], kVectors, sum[p]);
  if (lanes == kLanes) {
    finish_in_registers(finish, 0, row, column, sum, [](const float* from, int) { return load(from); });
  } else {
    finish_in_registers(finish, 0, row, column, sum, [lanes](const float* from, int) { return load_partial(from, lanes); });
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPositions; ++p) std::copy_n(sum[p], kVectors, sums[p]);
}

// Stores what vectors of channels from `column` on, of some positions, have become after the steps of `finish`.
template <int kPositions, int kVectors, class Vector, class Sum, class Put>
ASPEN_INLINE void store_finished(Vector (&sum)[kPositions][kVectors], const Place<Sum>& place, int64_t column, int lanes,
                                 Put put) {
  if constexpr (std::is_same_v<Sum, float>) {
    if (place.finish->length > 0) {
      Floats finished[kPositions][kVectors];  // so that the sums themselves need no address
#pragma GCC unroll 16
      for (int p = 0; p < kPositions; ++p) std::copy_n(sum[p], kVectors, finished[p]);
      finish_sums(*place.finish, place.row, column, finished, lanes);
#pragma GCC unroll 16
      for (int p = 0; p < kPositions; ++p) std::copy_n(finished[p], kVectors, sum[p]);
    }
  }
  for (int p = 0; p < kPositions; ++p) {
    for (int v = 0; v < kVectors; ++v) put(place.out + p * place.apart + column + v * kLanes, sum[p][v]);
  }
}
template <int kPositions, int kVectors, class Vector, class Sum>
ASPEN_INLINE void store_finished(Vector (&sum)[kPositions][kVectors], const Place<Sum>& place, int64_t column) {
  store_finished(sum, place, column, kLanes, [](Sum* to, Vector v) { store(to, v); });
}
template <class Vector, class Sum>
ASPEN_INLINE void store_finished_partial(Vector (&sum)[1][1], const Place<Sum>& place, int64_t column, int lanes) {
  store_finished(sum, place, column, lanes, [lanes](Sum* to, Vector v) { store_partial(to, v, lanes); });
}

// Some vectors of some positions whose windows have as many taps; the positions are `apart` in x. For floats there is a sum a row
// of the window, which keeps rounding errors small in large windows.
template <class Op, int kPositions, int kVectors, class T>
ASPEN_INLINE void pool_vectors(const Axis* axes, const Taps* taps, int inner, const T* x, int64_t apart,
                               const Place<Wide<T>>& place, int64_t column) {
  using Vector = typename Op::Vector;
  Vector total[kPositions][kVectors];
  for (auto& position : total) {
    for (Vector& v : position) v = broadcast(Op::identity());
  }
  const int64_t stride = axes[inner].tap_step * axes[inner].stride;
  for_each_tap_row(axes, taps, inner, x + column, [&](const T* row) {
    Vector sum[kPositions][kVectors];
    for (int p = 0; p < kPositions; ++p) {
      for (int v = 0; v < kVectors; ++v) sum[p][v] = load(row + p * apart + v * kLanes);
    }
    for (int64_t k = 1; k < taps[inner].count; ++k) {
      for (int p = 0; p < kPositions; ++p) {
        for (int v = 0; v < kVectors; ++v) sum[p][v] = Op::apply(sum[p][v], load(row + k * stride + p * apart + v * kLanes));
      }
    }
    for (int p = 0; p < kPositions; ++p) {
      for (int v = 0; v < kVectors; ++v) total[p][v] = Op::apply(total[p][v], sum[p][v]);
    }
  });
  store_finished(total, place, column);
}

// One output position, channels [begin, end) of x.
template <class Op, class T>
void pool_channels(const Axis* axes, const Taps* taps, int inner, const T* x, const Place<Wide<T>>& place, int64_t begin,
                   int64_t end) {
  int64_t col = begin;
  for (; col + 4 * kLanes <= end; col += 4 * kLanes) pool_vectors<Op, 1, 4>(axes, taps, inner, x, 0, place, col);
  for (; col + kLanes <= end; col += kLanes) pool_vectors<Op, 1, 1>(axes, taps, inner, x, 0, place, col);
  if (col == end) return;
  const int tail = static_cast<int>(end - col);
  typename Op::Vector total[1][1] = {{broadcast(Op::identity())}};
  const int64_t stride = axes[inner].tap_step * axes[inner].stride;
  for_each_tap_row(axes, taps, inner, x + col, [&](const T* row) {
    auto sum = load_partial(row, tail);
    for (int64_t k = 1; k < taps[inner].count; ++k) sum = Op::apply(sum, load_partial(row + k * stride, tail));
    total[0][0] = Op::apply(total[0][0], sum);
  });
  store_finished_partial(total, place, col, tail);
}

// Maxima and minima may be combined in any order.
template <class Op>
constexpr bool kIsExtreme = Op::kKind == Combination::kMax || Op::kKind == Combination::kMin;

// Whether Op is one of those and an axis has windows of three elements next to each other, so that windows side by side share the
// combinations of their columns.
template <class Op>
bool takes_threes(const Axis& axis) {
  return kIsExtreme<Op> && axis.window == 3 && axis.dilation == 1 && axis.base == 1 && (axis.step == 1 || axis.step == 2);
}

// A row of windows of three columns and of up to three rows of x.
template <class T>
struct ThreeRows {
  const T* at[3];  // where there are fewer, some are the same
  int64_t count;
  int64_t stride;  // from column to column

  // Finds the rows that the taps of the outer axes meet, from column 0 on. False if there are more than three.
  bool find(const PoolState& state, const Taps* taps, int inner, const T* x) {
    Taps outer[kMaxRank];
    count = 1;
    for (int axis = 0; axis < inner; ++axis) {
      outer[axis] = taps[axis];
      count = std::min<int64_t>(count * taps[axis].count, 4);
    }
    if (count > 3) return false;
    outer[inner] = {0, 1};
    const T** next = at;
    const auto add = [&](const T* row) { *next++ = row; };
    if (state.ring_axis < 0) {
      for_each_tap_row(state.axes, outer, inner, x, add);
    } else {
      const auto [first, in_ring] = taps[state.ring_axis];
      for (int64_t k = 0; k < in_ring; ++k) {
        outer[state.ring_axis] = {(first + k * state.axes[state.ring_axis].tap_step) % state.ring, 1};
        for_each_tap_row(state.axes, outer, inner, x, add);
      }
    }
    for (; count > 0 && next < at + 3; ++next) *next = at[count - 1];
    stride = state.axes[inner].stride;
    return true;
  }
};

// Channels [begin, end) of the window that has columns [first, first + count) of x.
template <class Op, class T>
void pool_window(const ThreeRows<T>& rows, int64_t first, int64_t count, const Place<Wide<T>>& place, int64_t begin,
                 int64_t end) {
  for (int64_t channel = begin; channel < end; channel += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, end - channel));
    typename Op::Vector total[1][1] = {{broadcast(Op::identity())}};
    for (int64_t i = 0; i < rows.count; ++i) {
      const T* const row = rows.at[i] + first * rows.stride + channel;
      for (int64_t k = 0; k < count; ++k) total[0][0] = Op::apply(total[0][0], load_partial(row + k * rows.stride, lanes));
    }
    store_finished_partial(total, place, channel, lanes);
  }
}

// Some vectors of channels of the windows of some positions, which begin `kStep` columns apart at column `first`. A single one
// may have `count` columns only. Stores nothing and gives false where a result may be off.
template <class Op, int kPositions, int kStep, int kVectors, class T>
ASPEN_INLINE bool pool_threes(const ThreeRows<T>& rows, int64_t first, int64_t count, const Place<Wide<T>>& place,
                              int64_t channel) {
  using Vector = typename Op::Vector;
  constexpr int kColumns = (kPositions - 1) * kStep + 3;
  Vector total[kPositions][kVectors];
  Ints off = {};
  const int64_t begin = first * rows.stride + channel;
  const T *const a = rows.at[0] + begin, *const b = rows.at[1] + begin, *const c = rows.at[2] + begin;
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    Vector columns[kColumns];
#pragma GCC unroll 16
    for (int i = 0; i < kColumns; ++i) {
      const int64_t at = (kPositions == 1 ? std::min<int64_t>(i, count - 1) : i) * rows.stride + v * kLanes;
      columns[i] = Op::apply(load(a + at), load(b + at), load(c + at));
    }
#pragma GCC unroll 16
    for (int p = 0; p < kPositions; ++p) {
      const Vector* const own = columns + p * kStep;
      total[p][v] = Op::apply(own[0], own[1], own[2]);
      off |= Op::may_be_off(total[p][v]);
    }
  }
  if (any(off)) return false;
  store_finished(total, place, channel);
  return true;
}

// Several output positions side by side along `inner`, whose windows lie within x; channels [0, cols).
template <class Op, int kPositions, class T>
void pool_positions(const Axis* axes, const Taps* taps, int inner, const T* x, const Place<Wide<T>>& place, int64_t cols) {
  const int64_t apart = axes[inner].step * axes[inner].stride;
  const int64_t whole = cols / kLanes * kLanes;
  for (int64_t col = 0; col < whole; col += kLanes) pool_vectors<Op, kPositions, 1>(axes, taps, inner, x, apart, place, col);
  for (int p = 0; whole < cols && p < kPositions; ++p) {
    pool_channels<Op>(axes, taps, inner, x + p * apart, place.behind(p), whole, cols);
  }
}

// Some positions, as above, with all channels.
template <class Op, int kPositions, int kStep, class T>
ASPEN_INLINE void pool_windows(const ThreeRows<T>& rows, int64_t first, int64_t count, const Place<Wide<T>>& place,
                               int64_t channels) {
  const auto one_by_one = [&](int64_t begin, int64_t end) {
    for (int p = 0; p < kPositions; ++p) pool_window<Op>(rows, first + p * kStep, count, place.behind(p), begin, end);
  };
  int64_t channel = 0;
  for (; channel + 2 * kLanes <= channels; channel += 2 * kLanes) {
    if (!pool_threes<Op, kPositions, kStep, 2>(rows, first, count, place, channel)) one_by_one(channel, channel + 2 * kLanes);
  }
  for (; channel + kLanes <= channels; channel += kLanes) {
    if (!pool_threes<Op, kPositions, kStep, 1>(rows, first, count, place, channel)) one_by_one(channel, channel + kLanes);
  }
  if (channel < channels) one_by_one(channel, channels);
}

// The positions [begin, end) along `axis`, where `takes_threes`.
template <class Op, int kStep, class T>
void pool_row(const ThreeRows<T>& of_row, const Axis& axis, int64_t begin, int64_t end, const Place<Wide<T>>& place,
              int64_t channels) {
  const ThreeRows<T> rows = of_row;
  const auto lie_within = [&](int64_t position, int count) {
    const int64_t first = position * kStep - axis.lo;
    return first >= 0 && position + count <= end && first + (count - 1) * kStep + 3 <= axis.extent;
  };
  for (int64_t position = begin, count; position < end; position += count) {
    const Place<Wide<T>> here = place.behind(position - begin);
    const int64_t first = position * kStep - axis.lo, inside = std::max<int64_t>(first, 0);
    const int64_t columns = std::min(first + 3, axis.extent) - inside;
    if (rows.count == 0 || columns <= 0) {
      pool_window<Op>(rows, inside, 0, here, 0, channels);
      count = 1;
    } else if (lie_within(position, 4)) {
      pool_windows<Op, 4, kStep>(rows, first, 3, here, channels);
      count = 4;
    } else if (lie_within(position, 2)) {
      pool_windows<Op, 2, kStep>(rows, first, 3, here, channels);
      count = 2;
    } else {
      pool_windows<Op, 1, kStep>(rows, inside, columns, here, channels);
      count = 1;
    }
  }
}

template <class Op, class T>
Wide<T> pool_element(const Axis* axes, const Taps* taps, int inner, const T* x) {
  Wide<T> total = Op::identity();
  const int64_t stride = axes[inner].tap_step * axes[inner].stride;
  for_each_tap_row(axes, taps, inner, x, [&](const T* row) {
    Wide<T> sum = widened(*row);
    for (int64_t k = 1; k < taps[inner].count; ++k) sum = Op::apply(sum, widened(row[k * stride]));
    total = Op::apply(total, sum);
  });
  return total;
}

// A part of a tile that is computed at once: rows along the axis before the last, and columns along the last, both counted from
// the tile's first.
template <class Sum>
struct Block {
  Sum* out;
  int64_t apart;  // of rows, in elements
  int64_t row, row_end;
  int64_t column, column_end;

  Sum* of_row(int64_t r) const { return out + (r - row) * apart; }
  int64_t columns() const { return column_end - column; }
};

// Where channels lie side by side: some vectors of them, of several positions at once.
template <class T, class Op>
void pool_over_channels(const PoolState& state, const TileArgs& args, const Block<Wide<T>>& block, Taps* taps,
                        const Finish& finish) {
  const int last = state.rank - 1, across = last - 1;
  const Axis& axis = state.axes[across];
  const T* const x = static_cast<const T*>(args.inputs[0]) + args.lo[last] + block.column;
  const int64_t first = args.lo[across];
  if constexpr (kIsExtreme<Op>) {
    ThreeRows<T> three;
    if (takes_threes<Op>(axis) && three.find(state, taps, across, x)) {
      const auto pool = axis.step == 1 ? pool_row<Op, 1, T> : pool_row<Op, 2, T>;
      pool(three, axis, first + block.row, first + block.row_end, {block.out, block.apart, &finish, 0}, block.columns());
      return;
    }
  }
  for (int64_t r = block.row, positions; r < block.row_end; r += positions) {
    positions = r + 4 <= block.row_end && state.are_alike(across, first + r, 4) ? 4 : 1;
    taps[across] = axis.taps(first + r);
    const Place<Wide<T>> place = {block.of_row(r), block.apart, &finish, r - block.row};
    if (positions == 4) {
      pool_positions<Op, 4>(state.axes, taps, across, x, place, block.columns());
    } else {
      pool_channels<Op>(state.axes, taps, across, x, place, 0, block.columns());
    }
  }
}

// What the columns of a block need of a line of x: the taps of each, and the elements [begin, end).
struct Line {
  const Taps* taps;
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;

  Line(const Axis& axis, int64_t first, int64_t columns, Taps* of_columns) : taps(of_columns) {
    for (int64_t c = 0; c < columns; ++c) {
      of_columns[c] = axis.taps(first + c);
      if (of_columns[c].count == 0) continue;
      begin = std::min(begin, of_columns[c].first);
      end = std::max(end, of_columns[c].first + (of_columns[c].count - 1) * axis.tap_step + 1);
    }
  }
  bool fits() const { return begin < end && end - begin <= kLineElements; }
};

// A row of outputs whose windows cover adjacent elements: the other axes are combined first, in `sums`, as if the line were
// channels.
template <class T, class Op>
void pool_line(const PoolState& state, const T* x, const Taps* taps, const Line& line, Wide<T>* sums, Wide<T>* out,
               int64_t columns) {
  const int last = state.rank - 1;
  Finish nothing;
  pool_channels<Op>(state.axes, taps, last - 1, x + line.begin, Place<Wide<T>>{sums, 0, &nothing, 0}, 0, line.end - line.begin);
  const int64_t tap_step = state.axes[last].tap_step;
  for (int64_t c = 0; c < columns; ++c) {
    Wide<T> sum = Op::identity();
    const Wide<T>* from = sums + (line.taps[c].count == 0 ? 0 : line.taps[c].first - line.begin);
    for (int64_t k = 0; k < line.taps[c].count; ++k) sum = Op::apply(sum, from[k * tap_step]);
    out[c] = sum;
  }
}

// Where the window covers the last axis.
template <class T, class Op>
void pool_over_columns(const PoolState& state, const TileArgs& args, const Block<Wide<T>>& block, Taps* taps, Taps* of_columns,
                       Wide<T>* sums) {
  const int last = state.rank - 1, across = last - 1;
  const auto* x = static_cast<const T*>(args.inputs[0]);
  const Line line(state.axes[last], args.lo[last] + block.column, block.columns(), of_columns);
  for (int64_t r = block.row; r < block.row_end; ++r) {
    if (across >= 0) taps[across] = state.axes[across].taps(args.lo[across] + r);
    Wide<T>* const out = block.of_row(r);
    if (state.over_lines && line.fits()) {
      pool_line<T, Op>(state, x, taps, line, sums, out, block.columns());
    } else {
      for (int64_t c = 0; c < block.columns(); ++c) {
        taps[last] = of_columns[c];
        out[c] = pool_element<Op>(state.axes, taps, last, x);
      }
    }
  }
}

template <class T, class Op>
const char* run_pool(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const PoolState*>(args.state);
  using Sum = Wide<T>;
  const int last = state.rank - 1;
  const bool in_output = state.epilogue.fits_output();
  std::byte* const epilogue_scratch = args.scratch + (in_output ? 0 : kBlockElements * sizeof(Sum));
  auto* const of_columns = reinterpret_cast<Taps*>(epilogue_scratch + state.epilogue.scratch_bytes());
  auto* const sums = reinterpret_cast<Sum*>(of_columns + kTapColumns);

  const int64_t cols = args.hi[last] - args.lo[last];
  const int64_t block_cols = std::min(cols, state.over_channels ? kBlockElements : kTapColumns);
  // Rows of a block walk the axis before the last.
  const int row_axis = last - 1;
  const int64_t rows = row_axis < 0 ? 1 : args.hi[row_axis] - args.lo[row_axis];
  if (cols <= 0 || rows <= 0) return nullptr;
  const int64_t block_rows = kBlockElements / block_cols;

  int64_t at[kMaxRank];
  Taps taps[kMaxRank];
  for (int axis = 0; axis < state.rank; ++axis) {
    if (args.lo[axis] >= args.hi[axis]) return nullptr;
    at[axis] = args.lo[axis];
    taps[axis] = state.axes[axis].taps(at[axis]);
  }
  for (;;) {
    for (int64_t row = 0; row < rows; row += block_rows) {
      for (int64_t col = 0; col < cols; col += block_cols) {
        if (row_axis >= 0) at[row_axis] = args.lo[row_axis] + row;
        at[last] = args.lo[last] + col;
        const Block<Sum> block = {
            .out = reinterpret_cast<Sum*>(in_output ? state.epilogue.output_at(args, at) : args.scratch),
            .apart = !in_output     ? block_cols
                     : row_axis < 0 ? 0
                                    : state.row_stride,
            .row = row,
            .row_end = std::min(rows, row + block_rows),
            .column = col,
            .column_end = std::min(cols, col + block_cols),
        };
        // What has no epilogue, or none that registers take, has no steps here.
        Finish finish;
        const bool finishes = std::is_same_v<Sum, float> && state.over_channels && in_output && row_axis >= 0 &&
                              state.epilogue.begins_in_registers();
        if (finishes) state.epilogue.finish(args, at, row_axis, finish);
        if (state.over_channels) {
          pool_over_channels<T, Op>(state, args, block, taps, finish);
        } else {
          pool_over_columns<T, Op>(state, args, block, taps, of_columns, sums);
        }
        const int64_t num_rows = block.row_end - row;
        if (!finishes) {
          state.epilogue.apply(args, at, std::max(row_axis, 0), num_rows, block.columns(), block.out, block.apart,
                               epilogue_scratch);
        } else if (!finish.completes) {
          state.epilogue.complete(args, at, row_axis, num_rows, block.columns(), epilogue_scratch);
        }
      }
    }
    int axis = row_axis - 1;
    for (; axis >= 0; --axis) {
      if (++at[axis] == args.hi[axis]) at[axis] = args.lo[axis];
      taps[axis] = state.axes[axis].taps(at[axis]);
      if (at[axis] != args.lo[axis]) break;
    }
    if (axis < 0) return nullptr;
  }
}

Box reads_of_pool(const OpState& op, const Box& box) noexcept {
  const auto& state = static_cast<const PoolState&>(op);
  Box read;
  for (int d = 0; d < state.rank; ++d) {
    const Axis& axis = state.axes[d];
    const int64_t first = box.lo[d] * axis.step - axis.lo;
    const int64_t last = (box.hi[d] - 1) * axis.step - axis.lo + (axis.window - 1) * axis.dilation;
    const auto bounded = [&](int64_t index) { return static_cast<int32_t>(std::clamp<int64_t>(index, 0, axis.extent)); };
    read.lo[d] = bounded(first <= 0 ? 0 : (first + axis.base - 1) / axis.base);
    read.hi[d] = bounded(last < 0 ? 0 : last / axis.base + 1);
  }
  return read;
}

PreparedOp prepare(const OpSpec& spec, int ring_axis, int64_t ring) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {.rank = {1, kMaxRank}, .dtypes = kPooled});
  const TensorView& output = reader.output({.rank = x.rank});
  auto state = std::make_unique<PoolState>();
  state->rank = output.rank;
  state->row_stride = output.rank > 1 ? output.strides[output.rank - 2] : 0;

  state->kind = static_cast<Combination>(reader.integer(0, 3, "the kind"));
  const auto rank = static_cast<size_t>(output.rank);
  // Each at most kMaxExtent, so that no product or sum below leaves 64 bits.
  const auto window = reader.list(rank, 1, kMaxExtent, "window");
  const auto strides = reader.list(rank, 1, kMaxExtent, "strides");
  const auto padding_lo = reader.list(rank, -kMaxExtent, kMaxExtent, "padding_lo");
  const auto padding_hi = reader.list(rank, -kMaxExtent, kMaxExtent, "padding_hi");
  const auto base_dilation = reader.list(rank, 1, kMaxExtent, "base_dilation");
  const auto window_dilation = reader.list(rank, 1, kMaxExtent, "window_dilation");
  for (size_t i = 0; i < rank; ++i) {
    Axis& axis = state->axes[i];
    axis = {x.shape[i],
            used_stride(x, static_cast<int>(i)),
            window[i],
            strides[i],
            padding_lo[i],
            base_dilation[i],
            window_dilation[i],
            1,
            0,
            1};
    axis.divisor = std::gcd(axis.dilation, axis.base);
    axis.inverse = inverse_modulo(axis.dilation / axis.divisor, axis.base / axis.divisor);
    axis.tap_step = axis.dilation / axis.divisor;
    const int64_t dilated = axis.extent == 0 ? 0 : (axis.extent - 1) * axis.base + 1;
    const int64_t padded = dilated + padding_lo[i] + padding_hi[i];
    const int64_t spanned = (axis.window - 1) * axis.dilation + 1;
    check_extent(output, "the output", static_cast<int>(i), num_windows(padded, spanned, axis.step));
  }
  state->epilogue = Epilogue::parse(reader, 1, wide(x.dtype));

  const int last = output.rank - 1;
  const Axis& channels = state->axes[last];
  // Channels of an empty x have no address to count from.
  state->over_channels = !is_empty(x) && last > 0 && channels.window == 1 && channels.step == 1 && channels.lo == 0 &&
                         channels.base == 1 && channels.extent == output.shape[last] &&
                         (channels.stride == 1 || channels.extent == 1);
  state->over_lines = !state->over_channels && !is_empty(x) && last > 0 && channels.stride == 1;
  const size_t line_bytes = state->over_channels ? 0 : kTapColumns * sizeof(Taps) + kLineElements * sizeof(float);
  const size_t scratch_bytes =
      (state->epilogue.fits_output() ? 0 : kBlockElements * sizeof(float)) + state->epilogue.scratch_bytes() + line_bytes;
  if (ring_axis >= 0) {
    int64_t rows = 1;
    for (int axis = 0; axis < last - 1; ++axis) rows = std::min<int64_t>(rows * state->axes[axis].window, 4);
    const bool in_threes = visit_combination_of(x.dtype, state->kind, [&]<class T, class Op>(T, Op) {
      return state->over_channels && ring_axis < last - 1 && rows <= 3 && takes_threes<Op>(state->axes[last - 1]);
    });
    if (!in_threes) return {};
    state->ring_axis = ring_axis;
    state->ring = ring;
  }
  const RunTile run =
      visit_combination_of(x.dtype, state->kind, []<class T, class Op>(T, Op) -> RunTile { return run_pool<T, Op>; });
  return {std::move(state), run, scratch_bytes, reads_of_pool};
}

}  // namespace

PreparedOp prepare_pool(const OpSpec& spec) { return prepare(spec, -1, 0); }
PreparedOp prepare_pool_of_ring(const OpSpec& spec, int axis, int64_t ring) { return prepare(spec, axis, ring); }

}  // namespace aspen::cpu::ASPEN_TARGET
