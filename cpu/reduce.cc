// The kernel "reduce": a sum, maximum, minimum, product or bitwise and, or, xor over any axes, then an epilogue.
//
// Floats of 16 bits are widened when they are read. Three ways, chosen by how the operand lies in memory: columns (neighbouring
// results come from neighbouring elements: vectors of results), rows (the reduced elements are adjacent: vectors of elements),
// and one by one.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "accumulate.h"
#include "box.h"
#include "epilogue.h"
#include "shapes.h"
#include "spec_reader.h"
#include "total.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_reduce(const OpSpec& spec);

namespace {

struct ReduceState final : OpState {
  int rank;                     // of the output
  int64_t x_strides[kMaxRank];  // of x along the output's axes
  LoopNest<1> reduced = LoopNest<1>(1);
  int64_t inner_extent = 1;  // the reduced loop that is walked innermost, which `reduced` then lacks
  int64_t inner_stride = 1;
  bool is_empty = false;  // there is nothing to reduce: results are identities
  Epilogue epilogue;
};

constexpr int64_t kBlockElements = 1024;  // results a block

// Calls row(pointer) for every combination of the reduced loops but the inner one.
template <class T, class Row>
ASPEN_INLINE void for_each_row(const ReduceState& state, const T* x, Row row) {
  const LoopNest<1>& nest = state.reduced;
  int64_t index[kMaxRank] = {};
  for (;;) {
    row(x);
    int loop = 0;
    for (; loop < nest.depth; ++loop) {
      x += nest.strides[loop][0];
      if (++index[loop] < nest.extents[loop]) break;
      x -= nest.strides[loop][0] * nest.extents[loop];
      index[loop] = 0;
    }
    if (loop == nest.depth) return;
  }
}

// Results [0, kVectors * kLanes) (or the first `tail` of one vector), of which element 0 is reduced from x on.
template <class Op, int kVectors, class T>
ASPEN_INLINE void reduce_columns(const ReduceState& state, const T* x, Wide<T>* out, [[maybe_unused]] int tail) {
  using Vector = typename Op::Vector;
  const auto load_lanes = [&](const T* from) { return kVectors > 0 ? load(from) : load_partial(from, tail); };
  constexpr int kCount = kVectors > 0 ? kVectors : 1;
  Total<Op> total[kCount];
  for_each_row(state, x, [&](const T* row) {
    for (int64_t begin = 0; begin < state.inner_extent; begin += kPiece) {
      const int64_t end = std::min(state.inner_extent, begin + kPiece);
      Vector sum[kCount];
      for (int v = 0; v < kCount; ++v) sum[v] = load_lanes(row + begin * state.inner_stride + v * kLanes);
      for (int64_t i = begin + 1; i < end; ++i) {
        const T* at = row + i * state.inner_stride;
        for (int v = 0; v < kCount; ++v) sum[v] = Op::apply(sum[v], load_lanes(at + v * kLanes));
      }
      for (int v = 0; v < kCount; ++v) total[v].add(sum[v]);
    }
  });
  if constexpr (kVectors > 0) {
    for (int v = 0; v < kCount; ++v) store(out + v * kLanes, total[v].value);
  } else {
    store_partial(out, total[0].value, tail);
  }
}

// One result, from rows of adjacent elements.
template <class Op, class T>
Wide<T> reduce_rows(const ReduceState& state, const T* x) {
  using Vector = typename Op::Vector;
  constexpr int64_t kStride = 4 * kLanes;
  const auto identity = broadcast(Op::identity());
  Total<Op> total;
  for_each_row(state, x, [&](const T* row) {
    int64_t begin = 0;
    while (begin + kStride <= state.inner_extent) {
      const int64_t end = std::min(state.inner_extent, begin + kPiece * kStride);
      Vector sum[4];
      for (int v = 0; v < 4; ++v) sum[v] = load(row + begin + v * kLanes);
      for (begin += kStride; begin + kStride <= end; begin += kStride) {
        for (int v = 0; v < 4; ++v) sum[v] = Op::apply(sum[v], load(row + begin + v * kLanes));
      }
      total.add(Op::apply(Op::apply(sum[0], sum[1]), Op::apply(sum[2], sum[3])));
    }
    for (; begin < state.inner_extent; begin += kLanes) {
      const int count = static_cast<int>(std::min<int64_t>(kLanes, state.inner_extent - begin));
      total.add(iota() < count ? load_partial(row + begin, count) : identity);
    }
  });
  if constexpr (Total<Op>::kCompensated) {
    double sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += total.value[lane];
    return static_cast<float>(sum);
  } else {
    Wide<T> sum = Op::identity();
    for (int lane = 0; lane < kLanes; ++lane) sum = Op::apply(sum, Wide<T>{total.value[lane]});
    return sum;
  }
}

// One result, from elements at any distance. Float sums are kept in float64.
template <class Op, class T>
Wide<T> reduce_elements(const ReduceState& state, const T* x) {
  if constexpr (std::is_same_v<Wide<T>, float> && Op::kKind == Combination::kSum) {
    double sum = 0;
    for_each_row(state, x, [&](const T* row) {
      for (int64_t i = 0; i < state.inner_extent; ++i) sum += to_float(row[i * state.inner_stride]);
    });
    return static_cast<float>(sum);
  } else {
    Wide<T> sum = Op::identity();
    for_each_row(state, x, [&](const T* row) {
      for (int64_t i = 0; i < state.inner_extent; ++i) sum = Op::apply(sum, widened(row[i * state.inner_stride]));
    });
    return sum;
  }
}

// Bytes of 0 and 1: or is the maximum, and is the minimum.
template <Combination kCombination>
struct CombineBools {
  static constexpr Combination kKind = kCombination;
  static constexpr uint8_t identity() { return kKind == Combination::kMin; }
  static ASPEN_INLINE uint8_t apply(uint8_t sum, uint8_t x) {
    const uint8_t bit = x != 0;
    return kKind == Combination::kMin ? sum & bit : sum | bit;
  }
};

// Bitwise, on the lanes of integers.
template <Combination kCombination>
struct CombineBits {
  static constexpr Combination kKind = kCombination;
  using Vector = Ints;
  static constexpr int32_t identity() { return kKind == Combination::kAnd ? -1 : 0; }
  template <class Bits>
  static ASPEN_INLINE Bits apply(Bits sum, Bits x) {
    if constexpr (kKind == Combination::kAnd) return sum & x;
    if constexpr (kKind == Combination::kOr) return sum | x;
    return sum ^ x;
  }
};

template <class Op, class T>
void reduce_block(const ReduceState& state, const T* x, int64_t x_stride, Wide<T>* out, int64_t cols) {
  if (state.is_empty) {
    std::fill_n(out, cols, Op::identity());
    return;
  }
  if constexpr (!std::is_same_v<T, uint8_t>) {
    if (x_stride == 1) {
      int64_t col = 0;
      for (; col + 4 * kLanes <= cols; col += 4 * kLanes) reduce_columns<Op, 4>(state, x + col, out + col, 0);
      for (; col + kLanes <= cols; col += kLanes) reduce_columns<Op, 1>(state, x + col, out + col, 0);
      if (col < cols) reduce_columns<Op, 0>(state, x + col, out + col, static_cast<int>(cols - col));
      return;
    }
    if (state.inner_stride == 1) {
      for (int64_t col = 0; col < cols; ++col) out[col] = reduce_rows<Op>(state, x + col * x_stride);
      return;
    }
  }
  for (int64_t col = 0; col < cols; ++col) out[col] = reduce_elements<Op>(state, x + col * x_stride);
}

template <class T, class Op>
const char* run_reduce(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const ReduceState*>(args.state);
  const int last = state.rank - 1;
  const bool in_output = state.epilogue.fits_output();
  std::byte* const epilogue_scratch = args.scratch + (in_output ? 0 : kBlockElements * sizeof(Wide<T>));
  const int64_t cols = last < 0 ? 1 : args.hi[last] - args.lo[last];
  const int64_t col_stride = last < 0 ? 1 : state.x_strides[last];

  // The blocks' corners: a row along the last axis for each point of the others.
  Odometer corner = {.rank = std::max(last, 0), .at = {}, .lo = {}, .hi = {}};
  for (int axis = 0; axis < corner.rank; ++axis) {
    corner.lo[axis] = args.lo[axis];
    corner.hi[axis] = args.hi[axis];
  }
  if (corner.empty() || cols <= 0) return nullptr;
  corner.begin();
  do {
    for (int64_t col = 0; col < cols; col += kBlockElements) {
      const int64_t block_cols = std::min(kBlockElements, cols - col);
      if (last >= 0) corner.at[last] = args.lo[last] + col;
      int64_t from = 0;
      for (int axis = 0; axis <= last; ++axis) from += corner.at[axis] * state.x_strides[axis];
      auto* const acc = reinterpret_cast<Wide<T>*>(in_output ? state.epilogue.output_at(args, corner.at) : args.scratch);
      reduce_block<Op>(state, static_cast<const T*>(args.inputs[0]) + from, col_stride, acc, block_cols);
      state.epilogue.apply(args, corner.at, last, 1, block_cols, acc, 0, epilogue_scratch);
    }
  } while (corner.next());
  return nullptr;
}

RunTile choose_run(DType dtype, Combination kind) {
  if (kind <= Combination::kProduct) {
    const RunTile run = visit_combination_of(dtype, kind, []<class T, class Op>(T, Op) -> RunTile { return run_reduce<T, Op>; });
    if (run != nullptr) return run;
  } else if (dtype == DType::kI32) {
    if (kind == Combination::kAnd) return run_reduce<int32_t, CombineBits<Combination::kAnd>>;
    if (kind == Combination::kOr) return run_reduce<int32_t, CombineBits<Combination::kOr>>;
    return run_reduce<int32_t, CombineBits<Combination::kXor>>;
  }
  if (dtype == DType::kBool && kind == Combination::kMax) return run_reduce<uint8_t, CombineBools<Combination::kMax>>;
  if (dtype == DType::kBool && kind == Combination::kMin) return run_reduce<uint8_t, CombineBools<Combination::kMin>>;
  throw GraphError(
      "a reduction of kind " + std::to_string(static_cast<int>(kind)) + " over " + std::string(name_of(dtype)) +
      "; this kernel reduces float32, bfloat16, float16 and int32, int32 alone bitwise, and bool by maximum or minimum, leave "
      "others to XLA");
}

}  // namespace

PreparedOp prepare_reduce(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {});
  const auto kind = static_cast<Combination>(reader.integer(0, 6, "the kind"));
  const auto axes = reader.axes(x.rank, "axes");
  bool is_reduced[kMaxRank] = {};
  for (const int64_t axis : axes) is_reduced[axis] = true;
  const TensorView& output = reader.output({.rank = x.rank - static_cast<int>(axes.size())});
  auto state = std::make_unique<ReduceState>();
  state->rank = output.rank;

  LoopNest<1> nest(1);
  for (int axis = 0, kept = 0; axis < x.rank; ++axis) {
    if (is_reduced[axis]) continue;
    check_extent(output, "the output", kept, x.shape[axis]);
    state->x_strides[kept++] = used_stride(x, axis);
  }
  for (int axis = x.rank - 1; axis >= 0; --axis) {
    if (!is_reduced[axis]) continue;
    state->is_empty |= x.shape[axis] == 0;
    nest.add_outside(x.shape[axis], [&](int) { return x.strides[axis]; });
  }
  if (state->is_empty) std::fill_n(state->x_strides, kMaxRank, 0);  // there is no element to find
  // The inner loop: of adjacent elements if there is one, else the innermost.
  int inner = 0;
  for (int loop = nest.depth - 1; loop > 0; --loop) {
    if (nest.strides[loop][0] == 1) inner = loop;
  }
  for (int loop = 0; loop < nest.depth; ++loop) {
    if (loop == inner) {
      state->inner_extent = nest.extents[loop];
      state->inner_stride = nest.strides[loop][0];
    } else {
      state->reduced.add_outside(nest.extents[loop], [&](int) { return nest.strides[loop][0]; });
    }
  }

  state->epilogue = Epilogue::parse(reader, 1, wide(x.dtype));
  const RunTile run = choose_run(x.dtype, kind);
  const size_t scratch_bytes =
      (state->epilogue.fits_output() ? 0 : kBlockElements * size_of(wide(x.dtype))) + state->epilogue.scratch_bytes();
  return {std::move(state), run, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
