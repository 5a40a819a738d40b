// The kernel "ragged_dot": products whose rows are in groups, each with a matrix of its own. The sizes of the groups are data,
// any int32: what lies beyond the rows is cut off, and rows that several groups hold, by negative sizes, are the sum over these.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "box.h"
#include "epilogue.h"
#include "planes.h"
#include "product.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_ragged_dot(const OpSpec& spec);

namespace {

struct RaggedDot final : OpState {
  TensorView rows;      // [..., M, K], with strides of 0 where they are never used, as the others
  TensorView matrices;  // [..., G, K, N]
  TensorView sizes;     // [..., G]
  TensorView output;    // [..., M, N]
  bool rows_adjacent;   // a row is adjacent float32
  ProductPlan plan;
  Epilogue epilogue;

  int64_t row_stride() const { return rows.strides[rows.rank - 2]; }
  int64_t row_step() const { return rows.strides[rows.rank - 1]; }
  int64_t depth_step() const { return matrices.strides[matrices.rank - 2]; }
  int64_t column_step() const { return matrices.strides[matrices.rank - 1]; }
  int64_t columns() const { return output.shape[output.rank - 1]; }
};

// Groups in their order, and the rows that each holds: as JAX says, by running sums that wrap.
class Groups {
 public:
  Groups(const int32_t* sizes, int64_t stride, int64_t count) : sizes_(sizes), stride_(stride), count_(count) {}

  // Calls visit(group, begin, end).
  template <class Visit>
  void visit(Visit visit) const {
    uint32_t end = 0;
    for (int64_t group = 0; group < count_; ++group) {
      const auto begin = static_cast<int32_t>(end);
      end += static_cast<uint32_t>(sizes_[group * stride_]);
      visit(group, int64_t{begin}, int64_t{static_cast<int32_t>(end)});
    }
  }

  // Whether each group begins where the one before it ends, so that none holds a row of another.
  bool apart() const {
    bool apart = true;
    visit([&](int64_t, int64_t begin, int64_t end) { apart &= begin <= end; });
    return apart;
  }

 private:
  const int32_t* sizes_;
  int64_t stride_, count_;
};

// Some rows of a tile times some columns, T, of a matrix.
template <class T>
struct RowsOfGroup {
  const RaggedDot& op;
  const TileArgs& args;
  const std::byte* a;        // at the first row
  const T* b;                // at the first column
  const int64_t* at;         // the first element's place in the output
  float* out;                // where it lies; nullptr where an epilogue comes between
  float* sums_to = nullptr;  // what the only row is added to instead
  std::byte* epilogue_scratch;

  void point(int64_t first, int rows, const Chunk& chunk, const float** pointers, float* gathered) const {
    const std::byte* const from = a + (first * op.row_stride() + chunk.begin * op.row_step()) * size_of(op.rows.dtype);
    if (op.rows_adjacent) {
      for (int r = 0; r < rows; ++r) pointers[r] = reinterpret_cast<const float*>(from) + r * op.row_stride();
      return;
    }
    load_lanes(op.rows.dtype, from, op.row_stride(), op.row_step(), rows, chunk.depth, reinterpret_cast<int32_t*>(gathered),
               chunk.depth);
    for (int r = 0; r < rows; ++r) pointers[r] = gathered + r * chunk.depth;
  }

  const T* weight(int64_t column, const Chunk& chunk) const {
    return b + column * op.column_step() + chunk.begin * op.depth_step();
  }
  void pack(int64_t column, int64_t columns, const Chunk& chunk, float* packed) const {
    aspen::cpu::ASPEN_TARGET::pack(op.matrices.dtype, weight(column, chunk), op.depth_step(), op.column_step(), chunk.depth,
                                   columns, packed, 0, chunk.depth);
  }
  const T* weights(int64_t column, const Chunk& chunk) const { return op.column_step() == 1 ? weight(column, chunk) : nullptr; }
  int64_t weights_stride() const { return op.depth_step(); }
  int64_t columns_from(int64_t column) const { return op.columns() - at[op.output.rank - 1] - column; }
  const T* weight_columns(int64_t column, const Chunk& chunk) const {
    return op.depth_step() == 1 ? weight(column, chunk) : nullptr;
  }
  int64_t weight_columns_stride() const { return op.column_step(); }

  float* direct(int64_t first, int, int64_t column, Finish&) const {
    return out != nullptr && sums_to == nullptr ? out + first * direct_stride() + column : nullptr;
  }
  int64_t direct_stride() const { return op.output.strides[op.output.rank - 2]; }

  void finish(int64_t first, int rows, int64_t column, int64_t columns, const float* sums, int64_t stride) const {
    if (sums_to != nullptr) {
      for (int64_t c = 0; c < columns; ++c) sums_to[column + c] += sums[c];
      return;
    }
    int64_t place[kMaxRank];
    const int rank = op.output.rank;
    std::copy_n(at, rank, place);
    place[rank - 2] += first;
    place[rank - 1] += column;
    op.epilogue.apply(args, place, rank - 2, rows, columns, sums, stride, epilogue_scratch);
  }
};

static_assert(ProductSource<RowsOfGroup<float>> && ReadsColumns<RowsOfGroup<BF16>>);

int64_t offset_of(const TensorView& view, const int64_t* at, int rank) {
  int64_t offset = 0;
  for (int d = 0; d < rank; ++d) offset += at[d] * view.strides[d];
  return offset;
}

template <class T>
const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const RaggedDot*>(args.state);
  const int row_axis = op.output.rank - 2, column_axis = row_axis + 1;
  for (int d = 0; d <= column_axis; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
  }
  const int64_t num_columns = args.hi[column_axis] - args.lo[column_axis];
  Odometer batch = {.rank = row_axis, .at = {}, .lo = {}, .hi = {}};
  std::copy_n(args.lo, row_axis, batch.lo);
  std::copy_n(args.hi, row_axis, batch.hi);
  batch.begin();
  do {
    const Groups groups(static_cast<const int32_t*>(args.inputs[2]) + offset_of(op.sizes, batch.at, row_axis),
                        op.sizes.strides[row_axis], op.sizes.shape[row_axis]);
    int64_t at[kMaxRank];
    std::copy_n(batch.at, row_axis, at);
    // `rows` rows from `row` on times `columns` columns from `column` on of a group's matrix.
    const auto multiply_rows = [&](int64_t group, int64_t row, int64_t rows, int64_t column, int64_t columns, float* sums_to) {
      at[row_axis] = row;
      at[column_axis] = column;
      const int64_t a = offset_of(op.rows, at, column_axis);
      const int64_t b = offset_of(op.matrices, at, row_axis) + group * op.matrices.strides[row_axis] + column * op.column_step();
      const RowsOfGroup<T> source{
          .op = op,
          .args = args,
          .a = static_cast<const std::byte*>(args.inputs[0]) + a * size_of(op.rows.dtype),
          .b = static_cast<const T*>(args.inputs[1]) + b,
          .at = at,
          .out = op.epilogue.empty() ? static_cast<float*>(args.output) + offset_of(op.output, at, op.output.rank) : nullptr,
          .sums_to = sums_to,
          .epilogue_scratch = args.scratch + op.plan.scratch_bytes(),
      };
      op.plan.run(source, rows, columns, args.scratch);
    };
    // Rows of any number of groups, one by one.
    const auto sum_rows = [&](int64_t begin, int64_t end) {
      constexpr int64_t kColumns = 512;
      float sums[kColumns];
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t column = 0; column < num_columns; column += kColumns) {
          const int64_t from = args.lo[column_axis] + column, columns = std::min(kColumns, num_columns - column);
          std::fill_n(sums, columns, 0.0f);
          groups.visit([&](int64_t group, int64_t first, int64_t last) {
            if (first <= row && row < last) multiply_rows(group, row, 1, from, columns, sums);
          });
          at[row_axis] = row;
          at[column_axis] = from;
          op.epilogue.apply(args, at, row_axis, 1, columns, sums, columns, args.scratch + op.plan.scratch_bytes());
        }
      }
    };
    const int64_t first_row = args.lo[row_axis], last_row = args.hi[row_axis];
    if (!groups.apart()) {
      sum_rows(first_row, last_row);
      continue;
    }
    int64_t next = first_row;
    groups.visit([&](int64_t group, int64_t, int64_t end) {
      end = std::min(end, last_row);
      if (end <= next) return;
      multiply_rows(group, next, end - next, args.lo[column_axis], num_columns, nullptr);
      next = end;
    });
    sum_rows(next, last_row);  // of no group: zeros
  } while (batch.next());
  return nullptr;
}

TensorView with_used_strides(TensorView view) {
  for (int d = 0; d < view.rank; ++d) view.strides[d] = used_stride(view, d);
  return view;
}

}  // namespace

PreparedOp prepare_ragged_dot(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& rows = reader.input(0, "the rows", {.rank = {2, kMaxRank - 1}, .dtypes = kFloats});
  const TensorView& matrices = reader.input(1, "the matrices", {.rank = rows.rank + 1, .dtypes = kFloats});
  const TensorView& sizes = reader.input(2, "the sizes of groups", {.rank = rows.rank - 1, .dtypes = DType::kI32});
  const TensorView& output = reader.output({.rank = rows.rank, .dense = true});
  const int batch = rows.rank - 2;
  for (int d = 0; d < batch; ++d) {
    check_extent(matrices, "the matrices", d, rows.shape[d]);
    check_extent(sizes, "the sizes of groups", d, rows.shape[d]);
    check_extent(output, "the output", d, rows.shape[d]);
  }
  const int64_t depth = rows.shape[batch + 1], columns = matrices.shape[batch + 2], groups = sizes.shape[batch];
  check_extent(matrices, "the matrices", batch, groups);
  check_extent(matrices, "the matrices", batch + 1, depth);
  check_extent(output, "the output", batch, rows.shape[batch]);
  check_extent(output, "the output", batch + 1, columns);
  auto op = std::make_unique<RaggedDot>();
  op->rows = with_used_strides(rows);
  op->matrices = with_used_strides(matrices);
  op->sizes = with_used_strides(sizes);
  op->output = output;
  op->rows_adjacent = depth == 0 || (rows.dtype == DType::kF32 && (op->row_step() == 1 || depth == 1));
  const bool few_rows = rows.shape[batch] <= kFewRows * std::max<int64_t>(groups, 1);  // in a group, where they are of one size
  op->plan = ProductPlan(1, depth, columns, !op->rows_adjacent, few_rows ? ProductPlan::kLongSums : ProductPlan::kShortSums);
  op->epilogue = Epilogue::parse(reader, 3, DType::kF32);
  PreparedOp prepared;
  prepared.run = visit_float(matrices.dtype, []<class T>(T) -> RunTile { return run<T>; });
  prepared.scratch_bytes = op->plan.scratch_bytes() + op->epilogue.scratch_bytes();
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace aspen::cpu::ASPEN_TARGET
