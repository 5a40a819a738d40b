// The kernel "arg_reduce": where along an axis the largest or the least element is; the first of equal ones, and the first NaN
// before any number, as jax.lax.argmax says.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "box.h"
#include "numbers.h"
#include "shapes.h"
#include "spec_reader.h"
#include "vmath.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_arg_reduce(const OpSpec& spec);

namespace {

struct ArgReduceState final : OpState {
  TensorView output;
  int64_t x_strides[kMaxRank] = {};  // along the output's axes
  int64_t extent = 0;
  int64_t stride = 0;  // along the axis
};

// Whether x is found in place of what was found before it.
template <bool kIsMax, class Number>
ASPEN_INLINE bool is_better(Number x, Number best) {
  return (kIsMax ? x > best : x < best) | ((x != x) & (best == best));
}

// The best of a row of adjacent floats: chunk by chunk with vectors, and in a chunk that has something better one by one.
template <bool kIsMax>
int32_t find_in_row(const float* x, int64_t extent) {
  constexpr int64_t kChunk = 16 * kLanes;
  float best = x[0];
  int64_t found = 0, i = 1;
  for (; i + kChunk <= extent; i += kChunk) {
    Floats part[4];
    for (int v = 0; v < 4; ++v) part[v] = load(x + i + v * kLanes);
    for (int64_t k = 4; k < 16; k += 4) {
      for (int v = 0; v < 4; ++v) {
        const Floats next = load(x + i + (k + v) * kLanes);
        part[v] = kIsMax ? max(part[v], next) : min(part[v], next);
      }
    }
    const auto join = [](Floats a, Floats b) { return kIsMax ? max(a, b) : min(a, b); };
    const Floats all = join(join(part[0], part[1]), join(part[2], part[3]));
    bool has_better = false;
    for (int lane = 0; lane < kLanes; ++lane) has_better |= is_better<kIsMax>(float{all[lane]}, best);
    if (!has_better) continue;
    for (int64_t k = i; k < i + kChunk; ++k) {
      if (is_better<kIsMax>(x[k], best)) {
        best = x[k];
        found = k;
      }
    }
  }
  for (; i < extent; ++i) {
    if (is_better<kIsMax>(x[i], best)) {
      best = x[i];
      found = i;
    }
  }
  return static_cast<int32_t>(found);
}

template <bool kIsMax, class T>
const char* run_arg_reduce(const TileArgs& args) noexcept {
  using Number = decltype(to_number(T{}));
  const auto& state = *static_cast<const ArgReduceState*>(args.state);
  const TensorView& output = state.output;
  const int last = output.rank - 1;
  const int64_t columns = last < 0 ? 1 : args.hi[last] - args.lo[last];
  const int64_t x_column = last < 0 ? 0 : state.x_strides[last];
  const int64_t out_column = last < 0 ? 0 : output.strides[last];
  Odometer corner = {.rank = output.rank, .at = {}, .lo = {}, .hi = {}};
  for (int d = 0; d < output.rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
    corner.lo[d] = args.lo[d];
    corner.hi[d] = d == last ? args.lo[d] + 1 : args.hi[d];
  }
  // Columns side by side are searched together, row by row; else each is walked on its own.
  constexpr int64_t kColumns = 64;
  const int64_t together = state.stride == 1 ? 1 : kColumns;
  corner.begin();
  do {
    int64_t from = 0, to = 0;
    for (int d = 0; d < output.rank; ++d) {
      from += corner.at[d] * state.x_strides[d];
      to += corner.at[d] * output.strides[d];
    }
    for (int64_t column = 0; column < columns; column += together) {
      const T* const x = static_cast<const T*>(args.inputs[0]) + from + column * x_column;
      int32_t* const out = static_cast<int32_t*>(args.output) + to + column * out_column;
      if constexpr (std::is_same_v<T, float>) {
        if (state.stride == 1) {
          *out = find_in_row<kIsMax>(x, state.extent);
          continue;
        }
      }
      const int64_t count = std::min(together, columns - column);
      Number best[kColumns];
      int32_t found[kColumns] = {};
      for (int64_t c = 0; c < count; ++c) best[c] = to_number(x[c * x_column]);
      for (int64_t i = 1; i < state.extent; ++i) {
        const T* const row = x + i * state.stride;
        for (int64_t c = 0; c < count; ++c) {
          const Number next = to_number(row[c * x_column]);
          const bool better = is_better<kIsMax>(next, best[c]);
          best[c] = better ? next : best[c];
          found[c] = better ? static_cast<int32_t>(i) : found[c];
        }
      }
      for (int64_t c = 0; c < count; ++c) out[c * out_column] = found[c];
    }
  } while (corner.next());
  return nullptr;
}

}  // namespace

PreparedOp prepare_arg_reduce(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {.rank = {1, kMaxRank}});
  reader.end_inputs(1);
  const TensorView& output = reader.output({.rank = x.rank - 1, .dtypes = DType::kI32});
  const int64_t kind = reader.integer(1, 2, "the kind");
  const auto reduced = static_cast<int>(reader.integer(0, x.rank - 1, "the axis"));
  reader.end_without_program();
  auto state = std::make_unique<ArgReduceState>();
  state->output = output;
  for (int axis = 0, kept = 0; axis < x.rank; ++axis) {
    if (axis == reduced) continue;
    check_extent(output, "the output", kept, x.shape[axis]);
    state->x_strides[kept++] = used_stride(x, axis);
  }
  if (x.shape[reduced] < 1) throw GraphError("the axis is empty");
  state->extent = x.shape[reduced];
  state->stride = used_stride(x, reduced);
  const RunTile run = visit_number(
      x.dtype, [&]<class T>(T) -> RunTile { return kind == 1 ? run_arg_reduce<true, T> : run_arg_reduce<false, T>; });
  return {std::move(state), run, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
