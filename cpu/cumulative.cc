// The kernel "cumulative": running sums, products, maxima, minima and logarithms of sums of exponentials along an axis.
//
// A tile starts at the axis's beginning wherever its box does, so boxes that cut the axis are right, only slower.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "aspen_jax/engine/words.h"
#include "box.h"
#include "numbers.h"
#include "shapes.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_cumulative(const OpSpec& spec);

namespace {

enum class Kind : int64_t { kSum = 0, kMax = 1, kMin = 2, kProduct = 3, kLogSumExp = 4 };

struct CumulativeState final : OpState {
  TensorView x;
  TensorView output;
  int axis = 0;
  int column_axis = -1;  // the last of the other axes
  bool is_reverse = false;
};

// Columns that are taken along the axis together: independent sums hide each other's latency.
constexpr int64_t kColumns = 64;

template <Kind kKind, class T>
struct Total {
  Running<T> value;

  ASPEN_INLINE void begin(Running<T> x) { value = x; }
  ASPEN_INLINE void add(Running<T> x) {
    if constexpr (kKind == Kind::kSum || kKind == Kind::kProduct) {
      if constexpr (std::is_same_v<Running<T>, double>) {
        value = kKind == Kind::kSum ? value + x : value * x;
      } else {  // integers wrap
        const auto a = static_cast<uint64_t>(value), b = static_cast<uint64_t>(x);
        value = static_cast<Running<T>>(kKind == Kind::kSum ? a + b : a * b);
      }
    } else {
      const bool keeps = kKind == Kind::kMax ? value > x : value < x;
      value = keeps || value != value ? value : x;
    }
  }
  ASPEN_INLINE Running<T> result() const { return value; }
};

template <class T>
struct Total<Kind::kLogSumExp, T> {
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

template <Kind kKind, class T>
const char* run_cumulative(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const CumulativeState*>(args.state);
  const TensorView& output = state.output;
  const int axis = state.axis, column_axis = state.column_axis;
  const int64_t extent = output.shape[axis];
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
      const T* const x = static_cast<const T*>(args.inputs[0]) + from + column * x_column;
      T* const out = static_cast<T*>(args.output) + to + column * out_column;
      Total<kKind, T> totals[kColumns];
      for (int64_t i = 0; i < last; ++i) {
        const T* const row = x + i * x_step;
        for (int64_t c = 0; c < count; ++c) {
          const auto value = static_cast<Running<T>>(to_number(row[c * x_column]));
          if (i == 0) {
            totals[c].begin(value);
          } else {
            totals[c].add(value);
          }
        }
        if (i < first) continue;
        T* const out_row = out + i * out_step;
        for (int64_t c = 0; c < count; ++c) out_row[c * out_column] = from_number<T>(totals[c].result());
      }
    }
  } while (corner.next());
  return nullptr;
}

template <class T>
RunTile choose_run(Kind kind) {
  switch (kind) {
    case Kind::kSum:
      return run_cumulative<Kind::kSum, T>;
    case Kind::kMax:
      return run_cumulative<Kind::kMax, T>;
    case Kind::kMin:
      return run_cumulative<Kind::kMin, T>;
    case Kind::kProduct:
      return run_cumulative<Kind::kProduct, T>;
    case Kind::kLogSumExp:
      if constexpr (std::is_same_v<Running<T>, double>) return run_cumulative<Kind::kLogSumExp, T>;
  }
  throw GraphError("cumulative of kind 4 is for floats");
}

}  // namespace

PreparedOp prepare_cumulative(const OpSpec& spec) {
  if (spec.inputs.size() != 1) throw GraphError("cumulative has one input, not " + std::to_string(spec.inputs.size()));
  auto state = std::make_unique<CumulativeState>();
  const TensorView& x = spec.inputs[0];
  const TensorView& output = spec.output;
  check_rank(output, output.rank, "cumulative's output");
  check_rank(x, output.rank, "cumulative's input");
  if (!std::equal(x.shape, x.shape + x.rank, output.shape)) throw GraphError("cumulative's input has not its output's shape");
  if (x.dtype != output.dtype) throw GraphError("cumulative's output has not its input's dtype");
  state->x = x;
  state->output = output;
  WordReader words(spec.params);
  const auto kind = static_cast<Kind>(words.integer(0, 4, "cumulative's kind"));
  state->axis = static_cast<int>(words.integer(0, output.rank - 1, "cumulative's axis"));
  state->is_reverse = words.integer(0, 1, "cumulative's mark for reverse") == 1;
  words.integer(0, 0, "cumulative's mark for an epilogue (it cannot have one)");
  if (!words.done()) throw GraphError("there are words after cumulative's parameters");
  state->column_axis = state->axis == output.rank - 1 ? output.rank - 2 : output.rank - 1;
  if (x.dtype == DType::kBool) throw GraphError("cumulative of bools; convert them to integers");
  const RunTile run = visit_number(x.dtype, [&]<class T>(T) { return choose_run<T>(kind); });
  return {std::move(state), run, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
