// What a row program reduces rows with: sums, maxima, minima and products, of elements as they are or of squared differences.
//
// A reduction works on planes whose columns are adjacent (block.h), in one of three ways: a number for each row, when a plane
// holds whole rows; a total of kLanes lanes for a row that takes many planes; and a total for each column, where neighbouring
// rows are adjacent in memory and the columns of planes are rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "accumulate.h"
#include "block.h"
#include "total.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// `shifts` is a plane of what is subtracted before an element is squared: a number a row or, for add_columns, a number a column.
struct RowReduction {
  // Row i of the plane to numbers[i].
  void (*each_row)(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* numbers) noexcept;
  // Totals in memory are `count` values, then what each has lost.
  void (*begin)(void* totals, int64_t count) noexcept;
  // Adds all elements of a plane to kLanes totals, which `fold` turns into a number.
  void (*add_plane)(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* totals) noexcept;
  void (*fold)(const void* totals, void* number) noexcept;
  // Adds each column to a total of its own. There are `count` totals, no fewer than columns.
  void (*add_columns)(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* totals, int64_t count) noexcept;
};

// Lane i of the result is lane (i + distance) % kLanes.
ASPEN_INLINE Floats rotated(Floats x, int distance) { return permute(x, (iota() + distance) & (kLanes - 1)); }
ASPEN_INLINE Ints rotated(Ints x, int distance) { return as_ints(rotated(as_floats(x), distance)); }

// All lanes combined, in every lane.
template <class Op>
ASPEN_INLINE typename Op::Vector folded(typename Op::Vector x) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x = Op::apply(x, rotated(x, distance));
  return x;
}

// What is reduced: the elements as they are, or (a variance is the mean of these) the squares of their differences from a number.
struct Itself {
  template <class V>
  static ASPEN_INLINE V apply(V x, V) {
    return x;
  }
};
struct SquaredDeviation {
  static ASPEN_INLINE Floats apply(Floats x, Floats shift) {
    const Floats deviation = x - shift;
    return deviation * deviation;
  }
};

// Adds `count` adjacent elements.
template <class Op, class Map, class T>
ASPEN_INLINE void add_elements(Total<Op>& total, const T* from, int64_t count, typename Op::Vector shift) {
  const auto at = [&](int64_t i) { return Map::apply(load(from + i), shift); };
  constexpr int64_t kStride = 4 * kLanes;
  int64_t i = 0;
  while (i + kStride <= count) {
    const int64_t end = std::min(count, i + kPiece * kStride);
    typename Op::Vector sum[4];
    for (int v = 0; v < 4; ++v) sum[v] = at(i + v * kLanes);
    for (i += kStride; i + kStride <= end; i += kStride) {
      for (int v = 0; v < 4; ++v) sum[v] = Op::apply(sum[v], at(i + v * kLanes));
    }
    total.add(Op::apply(Op::apply(sum[0], sum[1]), Op::apply(sum[2], sum[3])));
  }
  if (i == count) return;
  auto sum = broadcast(Op::identity());
  for (; i + kLanes <= count; i += kLanes) sum = Op::apply(sum, at(i));
  const auto tail = static_cast<int>(count - i);
  if (tail > 0) {
    const auto last = Map::apply(load_partial(from + i, tail), shift);
    sum = Op::apply(sum, iota() < tail ? last : broadcast(Op::identity()));
  }
  total.add(sum);
}

template <class Op, class Map, class T>
void reduce_each_row(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* numbers) noexcept {
  const auto* row = static_cast<const T*>(from.data);
  const auto* shift = static_cast<const T*>(shifts.data);
  for (int64_t i = 0; i < rows; ++i, row += from.row_stride, shift += shifts.row_stride) {
    Total<Op> total;
    add_elements<Op, Map>(total, row, cols, broadcast(*shift));
    static_cast<T*>(numbers)[i] = folded<Op>(total.value)[0];
  }
}

template <class Op, class T>
void begin_totals(void* totals, int64_t count) noexcept {
  std::fill_n(static_cast<T*>(totals), count, Op::identity());
  std::fill_n(static_cast<T*>(totals) + count, count, T{});
}

// Adds the first `lanes` columns of a plane, whose columns are adjacent, to the total's lanes of the same number.
template <class Op, class Map, class T>
ASPEN_INLINE void add_down(Total<Op>& total, const T* from, int64_t row_stride, int64_t rows, int lanes,
                           typename Op::Vector shift) {
  using Vector = typename Op::Vector;
  const auto add_rows = [&](auto at) {
    int64_t row = 0;
    while (row + 4 <= rows) {
      const int64_t end = std::min(rows, row + 4 * kPiece);
      Vector sum[4] = {at(row), at(row + 1), at(row + 2), at(row + 3)};
      for (row += 4; row + 4 <= end; row += 4) {
        for (int v = 0; v < 4; ++v) sum[v] = Op::apply(sum[v], at(row + v));
      }
      total.add(Op::apply(Op::apply(sum[0], sum[1]), Op::apply(sum[2], sum[3])));
    }
    for (; row < rows; ++row) total.add(at(row));
  };
  if (lanes >= kLanes) {
    add_rows([&](int64_t row) { return Map::apply(load(from + row * row_stride), shift); });
  } else {
    add_rows([&](int64_t row) {
      const Vector x = Map::apply(load_partial(from + row * row_stride, lanes), shift);
      return iota() < lanes ? x : broadcast(Op::identity());
    });
  }
}

template <class Op, class Map, class T>
void add_plane(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* totals) noexcept {
  auto* const lanes = static_cast<T*>(totals);
  Total<Op> total{load(lanes), load(lanes + kLanes)};
  const auto* row = static_cast<const T*>(from.data);
  const auto shift = broadcast(*static_cast<const T*>(shifts.data));
  if (from.row_stride == cols) {
    cols *= rows;
    rows = 1;
  }
  if (cols < rows * kLanes) {
    for (int64_t col = 0; col < cols; col += kLanes) {
      add_down<Op, Map>(total, row + col, from.row_stride, rows, static_cast<int>(std::min<int64_t>(kLanes, cols - col)), shift);
    }
  } else {
    for (int64_t i = 0; i < rows; ++i, row += from.row_stride) add_elements<Op, Map>(total, row, cols, shift);
  }
  store(lanes, total.value);
  store(lanes + kLanes, total.lost);
}
template <class Op, class T>
void fold_total(const void* totals, void* number) noexcept {
  *static_cast<T*>(number) = folded<Op>(load(static_cast<const T*>(totals)))[0];
}

template <class Op, class Map, class T>
void add_columns(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* totals, int64_t count) noexcept {
  auto* const values = static_cast<T*>(totals);
  for (int64_t col = 0; col < cols; col += kLanes) {
    const auto lanes = static_cast<int>(std::min<int64_t>(kLanes, cols - col));
    Total<Op> total{load(values + col), load(values + count + col)};
    add_down<Op, Map>(total, static_cast<const T*>(from.data) + col, from.row_stride, rows, lanes,
                      load_partial(static_cast<const T*>(shifts.data) + col, lanes));
    store(values + col, total.value);
    store(values + count + col, total.lost);
  }
}

template <class Op, class Map, class T>
inline constexpr RowReduction kRowReduction = {reduce_each_row<Op, Map, T>, begin_totals<Op, T>, add_plane<Op, Map, T>,
                                               fold_total<Op, T>, add_columns<Op, Map, T>};

// The reduction of the elements as they are, float32 or int32.
inline const RowReduction* row_reduction_of(Combination kind, DType dtype) {
  const auto of = [kind]<class T>(T) {
    return visit_combination<T>(kind, []<class Op>(Op) { return &kRowReduction<Op, Itself, T>; });
  };
  return dtype == DType::kF32 ? of(float{}) : of(int32_t{});
}

inline const RowReduction* sum_of_squares() { return &kRowReduction<Combine<float, Combination::kSum>, SquaredDeviation, float>; }

}  // namespace aspen::cpu::ASPEN_TARGET
