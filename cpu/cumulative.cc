// The kernel "cumulative": running sums, products, maxima, minima and logarithms of sums of exponentials along an axis.
//
// A tile starts at the axis's beginning wherever its box does, so boxes that cut the axis are right, only slower.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>

#include "box.h"
#include "numbers.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_cumulative(const OpSpec& spec);

namespace {

enum class Kind : int64_t { kSum = 0, kMax = 1, kMin = 2, kProduct = 3, kLogSumExp = 4 };

// How elements become Running numbers, rows x cols of them, and back; strides in elements.
using ReadBlock = void (*)(const std::byte* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols, void* to);
using WriteBlock = void (*)(const void* from, int64_t rows, int64_t cols, std::byte* to, int64_t row_stride, int64_t col_stride);

struct CumulativeState final : OpState {
  TensorView x;
  TensorView output;
  int axis = 0;
  int column_axis = -1;  // the last of the other axes
  bool is_reverse = false;
  ReadBlock read = nullptr;
  WriteBlock write = nullptr;
};

// Calls visit(index of a number in a dense block, index of its element) for all of them, in the order of the elements.
template <class Visitor>
ASPEN_INLINE void for_each_number(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, Visitor visit) {
  if (cols == 1 || std::abs(row_stride) < std::abs(col_stride)) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < rows; ++r) visit(r * cols + c, r * row_stride + c * col_stride);
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) visit(r * cols + c, r * row_stride + c * col_stride);
    }
  }
}

template <class T>
void read_block(const std::byte* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols, void* to) {
  auto* const numbers = static_cast<Running<T>*>(to);
  const T* const elements = reinterpret_cast<const T*>(from);
  for_each_number(rows, cols, row_stride, col_stride, [&](int64_t number, int64_t element) __attribute__((always_inline)) {
    numbers[number] = static_cast<Running<T>>(to_number(elements[element]));
  });
}

template <class T>
void write_block(const void* from, int64_t rows, int64_t cols, std::byte* to, int64_t row_stride, int64_t col_stride) {
  const auto* const numbers = static_cast<const Running<T>*>(from);
  T* const elements = reinterpret_cast<T*>(to);
  for_each_number(rows, cols, row_stride, col_stride, [&](int64_t number, int64_t element) __attribute__((always_inline)) {
    elements[element] = from_number<T>(numbers[number]);
  });
}

// Columns that are taken along the axis together: independent sums hide each other's latency.
constexpr int64_t kColumns = 64;
// Numbers that are read before they are added: many steps of few columns, few of many.
constexpr int64_t kBlock = 16 * kColumns;

template <Kind kKind, class Number>
struct Total {
  Number value;

  ASPEN_INLINE void begin(Number x) { value = x; }
  ASPEN_INLINE void add(Number x) {
    if constexpr (kKind == Kind::kSum || kKind == Kind::kProduct) {
      if constexpr (std::is_same_v<Number, double>) {
        value = kKind == Kind::kSum ? value + x : value * x;
      } else {  // integers wrap
        const auto a = static_cast<uint64_t>(value), b = static_cast<uint64_t>(x);
        value = static_cast<Number>(kKind == Kind::kSum ? a + b : a * b);
      }
    } else {
      value = kKind == Kind::kMax ? larger(value, x) : smaller(value, x);
    }
  }
  ASPEN_INLINE Number result() const { return value; }
};

template <>
struct Total<Kind::kLogSumExp, double> {
  double largest, sum;  // the result is largest + log(sum)

  void begin(double x) {
    largest = x;
    sum = 1;
  }
  void add(double x) {
    const double larger = largest != largest || largest > x ? largest : x;
    if (std::isfinite(larger)) sum = sum * std::exp(largest - larger) + std::exp(x - larger);
    largest = larger;
  }
  double result() const { return std::isfinite(largest) ? largest + std::log(sum) : largest; }
};

// Adds so many rows of `block` to the totals, the first of which may begin them; where `wanted`, results take the place of
// numbers.
template <class Total, class Number>
ASPEN_INLINE void add_steps(Total* totals, Number* block, int64_t steps, int64_t count, bool begins, bool wanted) {
  if (begins) {
    for (int64_t c = 0; c < count; ++c) totals[c].begin(block[c]);
    if (wanted) {
      for (int64_t c = 0; c < count; ++c) block[c] = totals[c].result();
    }
  }
  for (int64_t s = begins; s < steps; ++s) {
    Number* const row = block + s * count;
    for (int64_t c = 0; c < count; ++c) totals[c].add(row[c]);
    if (!wanted) continue;
    for (int64_t c = 0; c < count; ++c) row[c] = totals[c].result();
  }
}

template <Kind kKind, class Number>
const char* run_cumulative(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const CumulativeState*>(args.state);
  const TensorView& output = state.output;
  const int axis = state.axis, column_axis = state.column_axis;
  const int64_t extent = output.shape[axis], element_bytes = size_of(output.dtype);
  const int64_t x_step = state.is_reverse ? -state.x.strides[axis] : state.x.strides[axis];
  const int64_t out_step = state.is_reverse ? -output.strides[axis] : output.strides[axis];
  // The steps to take, and those whose results are in the box.
  const int64_t first = state.is_reverse ? extent - args.hi[axis] : args.lo[axis];
  const int64_t last = state.is_reverse ? extent - args.lo[axis] : args.hi[axis];
  const int64_t begin = state.is_reverse ? extent - 1 : 0;
  const int64_t columns = column_axis < 0 ? 1 : args.hi[column_axis] - args.lo[column_axis];
  const int64_t x_column = column_axis < 0 ? 0 : state.x.strides[column_axis];
  const int64_t out_column = column_axis < 0 ? 0 : output.strides[column_axis];

  Odometer corner = {.rank = output.rank, .at = {}, .lo = {}, .hi = {}};
  for (int d = 0; d < output.rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
    corner.lo[d] = d == axis ? begin : args.lo[d];
    corner.hi[d] = d == axis || d == column_axis ? corner.lo[d] + 1 : args.hi[d];
  }
  corner.begin();
  do {
    int64_t from = 0, to = 0;
    for (int d = 0; d < output.rank; ++d) {
      from += corner.at[d] * state.x.strides[d];
      to += corner.at[d] * output.strides[d];
    }
    for (int64_t column = 0; column < columns; column += kColumns) {
      const int64_t count = std::min(kColumns, columns - column);
      const int64_t x_at = from + column * x_column, out_at = to + column * out_column;
      Total<kKind, Number> totals[kColumns];
      Number block[kBlock];
      int64_t steps;
      for (int64_t step = 0; step < last; step += steps) {
        // Those before the box and those in it apart: of the former no results are wanted.
        steps = std::min(kBlock / count, (step < first ? first : last) - step);
        state.read(static_cast<const std::byte*>(args.inputs[0]) + (x_at + step * x_step) * element_bytes, x_step, x_column,
                   steps, count, block);
        // One column alone keeps its total in a register.
        if (count == 1) {
          add_steps(totals, block, steps, 1, step == 0, step >= first);
        } else {
          add_steps(totals, block, steps, count, step == 0, step >= first);
        }
        if (step < first) continue;
        state.write(block, steps, count, static_cast<std::byte*>(args.output) + (out_at + step * out_step) * element_bytes,
                    out_step, out_column);
      }
    }
  } while (corner.next());
  return nullptr;
}

template <class Number>
RunTile choose_run(Kind kind) {
  switch (kind) {
    case Kind::kSum:
      return run_cumulative<Kind::kSum, Number>;
    case Kind::kMax:
      return run_cumulative<Kind::kMax, Number>;
    case Kind::kMin:
      return run_cumulative<Kind::kMin, Number>;
    case Kind::kProduct:
      return run_cumulative<Kind::kProduct, Number>;
    case Kind::kLogSumExp:
      if constexpr (std::is_same_v<Number, double>) return run_cumulative<Kind::kLogSumExp, Number>;
  }
  throw GraphError("kind 4, the logarithm of a sum of exponentials, is for floats");
}

}  // namespace

PreparedOp prepare_cumulative(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {});
  reader.end_inputs(1);
  const TensorView& output = reader.output({.dtypes = x.dtype});
  check_shape(output, "the output", shape_of(x));
  auto state = std::make_unique<CumulativeState>();
  state->x = x;
  state->output = output;
  const auto kind = static_cast<Kind>(reader.integer(0, 4, "the kind"));
  state->axis = static_cast<int>(reader.integer(0, output.rank - 1, "the axis"));
  state->is_reverse = reader.flag("the mark for reverse");
  reader.end_without_program();
  state->column_axis = state->axis == output.rank - 1 ? output.rank - 2 : output.rank - 1;
  if (x.dtype == DType::kBool) throw GraphError("x is bool; convert it to integers");
  const RunTile run = visit_number(x.dtype, [&]<class T>(T) {
    state->read = read_block<T>;
    state->write = write_block<T>;
    return choose_run<Running<T>>(kind);
  });
  return {std::move(state), run, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
