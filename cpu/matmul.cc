// matmul: sums of products of two operands over the dimensions that only they have, through any views; float32, or floats of 16
// bits, which are widened on the way. Each dimension of an operand runs along one of the output, or is summed, so that no operand
// has to be transposed or repeated first. matmul_panels: the same with b stored in panels (panels.h).
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "epilogue.h"
#include "planes.h"
#include "product.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_matmul(const OpSpec& spec);
PreparedOp prepare_matmul_panels(const OpSpec& spec);

namespace {

// A dimension of the whole product: how far its steps go in the operand that gives rows and in the one that gives columns
// (0 where it is not one of its dimensions) and, for those of the output, the output's axis.
struct Dim {
  enum Role : uint8_t { kBatch, kRow, kColumn } role = kBatch;
  int axis = 0;
  int64_t extent = 1;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

struct Matmul final : OpState {
  int rows_input;  // which operand gives rows; the other one gives columns, and the output's last dimension is among them
  int out_rank;
  std::vector<Dim> dims;  // of the output, but for those of one element
  std::vector<Dim> runs;  // summed dimensions that cannot be walked together with the innermost, outermost first
  Dim depth;              // the innermost summed dimension
  DType rows_dtype;
  DType columns_dtype;
  bool rows_adjacent;    // a row's run is in adjacent float32
  bool columns_uniform;  // in the columns' operand all summed dimensions are one walk
  std::vector<int64_t> out_strides;
  int64_t inner;  // of how many products an element is the sum
  // For each dimension of a: the output's dimension that it runs along, or -1 and its extent where it is summed.
  std::vector<std::pair<int, int32_t>> a_dims;
  ProductPlan plan;
  Epilogue epilogue;

  int64_t run_offset(int64_t run, int64_t Dim::* stride) const {
    int64_t offset = 0;
    for (auto dim = runs.rbegin(); dim != runs.rend(); ++dim) {
      offset += run % dim->extent * ((*dim).*stride);
      run /= dim->extent;
    }
    return offset;
  }
};

// One product of rows by columns of T inside a tile.
template <class T>
struct Rows {
  const Matmul& op;
  const TileArgs& args;
  const std::byte* a;   // at the first row
  const T* b;           // at the first column
  float* out;           // at the first element
  const Dim* row;       // nullptr: there is one row
  int64_t column_step;  // from a column to the next, in b
  const int64_t* at;    // the first element's place in the output
  std::byte* epilogue_scratch;

  int64_t row_step() const { return row != nullptr ? row->row_stride : 0; }

  void point(int64_t first, int rows, const Chunk& chunk, const float** pointers, float* gathered) const {
    const int64_t from = first * row_step() + chunk.begin * op.depth.row_stride;
    for (int64_t run = 0; run < chunk.runs; ++run, pointers += kBlockRows) {
      const std::byte* const source = a + (from + op.run_offset(chunk.run + run, &Dim::row_stride)) * size_of(op.rows_dtype);
      if (op.rows_adjacent) {
        for (int r = 0; r < rows; ++r) pointers[r] = reinterpret_cast<const float*>(source) + r * row_step();
        continue;
      }
      load_lanes(op.rows_dtype, source, row_step(), op.depth.row_stride, rows, chunk.depth, reinterpret_cast<int32_t*>(gathered),
                 chunk.depth);
      for (int r = 0; r < rows; ++r, gathered += chunk.depth) pointers[r] = gathered;
    }
  }

  void pack(int64_t column, int64_t columns, const Chunk& chunk, float* packed) const {
    const T* const from = b + column * column_step + chunk.begin * op.depth.column_stride;
    for (int64_t run = 0; run < chunk.runs; ++run) {
      aspen::cpu::ASPEN_TARGET::pack(op.columns_dtype, from + op.run_offset(chunk.run + run, &Dim::column_stride),
                                     op.depth.column_stride, column_step, chunk.depth, columns, packed, run * chunk.depth,
                                     chunk.runs * chunk.depth);
    }
  }

  const T* first_weight(int64_t column, const Chunk& chunk) const {
    return b + column * column_step + op.run_offset(chunk.run, &Dim::column_stride) + chunk.begin * op.depth.column_stride;
  }
  const T* weights(int64_t column, const Chunk& chunk) const {
    return column_step == 1 && op.columns_uniform ? first_weight(column, chunk) : nullptr;
  }
  int64_t weights_stride() const { return op.depth.column_stride; }
  int64_t columns_from(int64_t column) const { return op.dims.back().extent - at[op.dims.size() - 1] - column; }
  const T* weight_columns(int64_t column, const Chunk& chunk) const {
    return op.columns_uniform && op.depth.column_stride == 1 ? first_weight(column, chunk) : nullptr;
  }
  int64_t weight_columns_stride() const { return column_step; }

  float* direct(int64_t first, int, int64_t column, Finish&) const {
    return op.epilogue.empty() ? out + first * direct_stride() + column : nullptr;
  }
  int64_t direct_stride() const { return row != nullptr ? op.out_strides[row->axis] : 0; }

  void finish(int64_t first, int rows, int64_t column, int64_t columns, const float* sums, int64_t stride) const {
    int64_t place[kMaxRank];
    const int rank = static_cast<int>(op.dims.size());
    std::copy_n(at, rank, place);
    if (row != nullptr) place[row->axis] += first;
    if (rank > 0) place[rank - 1] += column;
    op.epilogue.apply(args, place, row != nullptr ? row->axis : -1, rows, columns, sums, stride, epilogue_scratch);
  }
};

// The same with b in panels, where `b` is the whole of it.
struct RowsOfPanels : Rows<float> {
  int64_t first_column;  // of the product, in b

  StoredPanels panels() const { return {b, op.inner}; }
  int64_t panels_column(int64_t column) const { return first_column + column; }
};

static_assert(ProductSource<Rows<float>> && ProductSource<Rows<BF16>> && ReadsColumns<Rows<float>> && ReadsColumns<Rows<BF16>>);
static_assert(ProductSource<RowsOfPanels> && InPanels<RowsOfPanels>);

// A loop over a box of the output, over one dimension or several that are one walk in all operands. `axis` is the innermost.
struct Loop : Dim {
  int outermost;
};

template <class Source>
const char* run(const TileArgs& args) noexcept {
  constexpr bool kInPanels = std::is_same_v<Source, RowsOfPanels>;
  using T = std::remove_cvref_t<decltype(*Source::b)>;
  const auto& op = *static_cast<const Matmul*>(args.state);
  const int rank = static_cast<int>(op.dims.size());
  for (int d = 0; d < op.out_rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
  }
  Loop loops[kMaxRank];
  int num_loops = 0;
  int64_t at[kMaxRank] = {};
  int64_t row_at = 0, column_at = 0, out_at = 0;
  for (int i = rank - 1; i >= 0; --i) {
    const Dim& dim = op.dims[i];
    at[i] = args.lo[dim.axis];
    const int64_t extent = args.hi[dim.axis] - at[i];
    row_at += at[i] * dim.row_stride;
    column_at += at[i] * dim.column_stride;
    out_at += at[i] * op.out_strides[i];
    if (extent == 1) continue;
    if (num_loops > 0) {
      Loop& inner = loops[num_loops - 1];
      if (inner.role == dim.role && inner.outermost == i + 1 &&
          args.hi[op.dims[i + 1].axis] - at[i + 1] == op.dims[i + 1].extent && op.epilogue.runs_on(i + 1) &&
          dim.row_stride == inner.extent * inner.row_stride && dim.column_stride == inner.extent * inner.column_stride) {
        inner.extent *= extent;
        inner.outermost = i;
        continue;
      }
    }
    Loop& loop = loops[num_loops++];
    static_cast<Dim&>(loop) = dim;
    loop.axis = i;
    loop.extent = extent;
    loop.outermost = i;
  }
  // The innermost loop gives columns, unless the box has only one; the longest loop over rows gives rows.
  const bool has_columns = num_loops > 0 && loops[0].role == Dim::kColumn && loops[0].axis == rank - 1;
  const Loop* rows = nullptr;
  for (int i = has_columns; i < num_loops; ++i) {
    if (loops[i].role == Dim::kRow && (rows == nullptr || loops[i].extent > rows->extent)) rows = &loops[i];
  }
  const auto is_outer = [&](const Loop& loop) { return &loop != rows && !(has_columns && &loop == loops); };
  int64_t steps[kMaxRank] = {};
  // Moves to the next combination of the other loops; false after the last.
  const auto next = [&] {
    for (int i = 0; i < num_loops; ++i) {
      const Loop& loop = loops[i];
      if (!is_outer(loop)) continue;
      const bool ends = ++steps[i] == loop.extent;
      const int64_t move = ends ? 1 - loop.extent : 1;
      at[loop.axis] += move;
      row_at += move * loop.row_stride;
      column_at += move * loop.column_stride;
      out_at += move * op.out_strides[loop.axis];
      if (!ends) return true;
      steps[i] = 0;
    }
    return false;
  };
  do {
    const Rows<T> rows_of_b{
        .op = op,
        .args = args,
        .a = static_cast<const std::byte*>(args.inputs[op.rows_input]) + row_at * size_of(op.rows_dtype),
        .b = static_cast<const T*>(args.inputs[1 - op.rows_input]) + (kInPanels ? 0 : column_at),
        .out = op.epilogue.empty() ? static_cast<float*>(args.output) + out_at : nullptr,
        .row = rows,
        .column_step = has_columns ? loops[0].column_stride : 1,
        .at = at,
        .epilogue_scratch = args.scratch + op.plan.scratch_bytes(),
    };
    const int64_t num_rows = rows != nullptr ? rows->extent : 1, num_columns = has_columns ? loops[0].extent : 1;
    if constexpr (kInPanels) {
      op.plan.run(RowsOfPanels{rows_of_b, column_at}, num_rows, num_columns, args.scratch);
    } else {
      op.plan.run(rows_of_b, num_rows, num_columns, args.scratch);
    }
  } while (next());
  return nullptr;
}

// One index of the whole product as the operands see it.
struct Index {
  int64_t extent = -1;
  bool present[2] = {};
  int64_t strides[2] = {};
};

// The indices of the output and the summed ones, from the operands' shapes and their lists of labels: label l >= 0 is the
// output's dimension l, label -1 - j the j-th summed one.
struct Indices {
  Index of_output[kMaxRank];
  Index summed[kMaxRank];
};

Indices read_indices(const TensorView* operands, const std::span<const int64_t>* lists, const TensorView& output) {
  Indices indices;
  for (int d = 0; d < output.rank; ++d) indices.of_output[d].extent = output.shape[d];
  for (int operand = 0; operand < 2; ++operand) {
    const TensorView& view = operands[operand];
    const auto labels = lists[operand];
    for (int d = 0; d < view.rank; ++d) {
      if (labels[d] < -kMaxRank || labels[d] >= output.rank) {
        throw GraphError("label " + std::to_string(labels[d]) + " is neither a dimension of the output " + describe(output) +
                         " nor one of " + std::to_string(kMaxRank) + " summed ones");
      }
      Index& index = labels[d] < 0 ? indices.summed[-1 - labels[d]] : indices.of_output[labels[d]];
      if (index.present[operand]) throw GraphError("label " + std::to_string(labels[d]) + " is on two dimensions of an operand");
      if (index.extent >= 0 && index.extent != view.shape[d]) {
        throw GraphError("the shapes a " + describe(operands[0]) + ", b " + describe(operands[1]) + " and output " +
                         describe(output) + " disagree on label " + std::to_string(labels[d]));
      }
      index.extent = view.shape[d];
      index.present[operand] = true;
      index.strides[operand] = used_stride(view, d);
    }
  }
  for (int d = 0; d < output.rank; ++d) {
    if (!indices.of_output[d].present[0] && !indices.of_output[d].present[1]) {
      throw GraphError("dimension " + std::to_string(d) + " of the output is in neither operand");
    }
  }
  for (const Index& index : indices.summed) {
    if (index.present[0] != index.present[1]) throw GraphError("a dimension is summed that only one operand has");
  }
  return indices;
}

// The summed dimensions, those that one walk serves joined; the last is the innermost, along which rows are adjacent if ever, or
// columns are one walk.
std::vector<Dim> summed_dims(const Indices& indices, int rows_input, bool as_columns) {
  constexpr int64_t kMostProducts = int64_t{1} << 40;
  std::vector<Dim> dims;
  int64_t total = 1;
  for (const Index& index : indices.summed) {
    if (index.extent == 0) return {{.extent = 0}};
    if (index.extent <= 1) continue;
    dims.push_back(
        {.extent = index.extent, .row_stride = index.strides[rows_input], .column_stride = index.strides[1 - rows_input]});
    if (index.extent > kMostProducts / total) throw GraphError("more than 2^40 products are summed for one output");
    total *= index.extent;
  }
  std::ranges::stable_sort(dims, std::greater{}, [as_columns](const Dim& dim) {
    return std::pair(as_columns ? 0 : std::abs(dim.row_stride), std::abs(dim.column_stride));
  });
  std::vector<Dim> joined;
  for (const Dim& dim : dims) {
    if (!joined.empty() && joined.back().row_stride == dim.row_stride * dim.extent &&
        joined.back().column_stride == dim.column_stride * dim.extent) {
      joined.back() = {
          .extent = joined.back().extent * dim.extent, .row_stride = dim.row_stride, .column_stride = dim.column_stride};
    } else {
      joined.push_back(dim);
    }
  }
  if (joined.empty()) joined.emplace_back();
  return joined;
}

// A view without the output's dimensions of one element.
TensorView without_units(const TensorView& view, const TensorView& output) {
  TensorView kept;
  kept.dtype = view.dtype;
  for (int d = 0; d < output.rank; ++d) {
    if (output.shape[d] == 1) continue;
    kept.shape[kept.rank] = view.shape[d];
    kept.strides[kept.rank++] = view.strides[d];
  }
  return kept;
}

// What an operand of this shape and these labels was before it was stored in panels, as if its columns were side by side and
// its rows as far apart as within a panel.
TensorView before_panels(std::span<const int64_t> shape, std::span<const int64_t> labels) {
  TensorView view;
  view.dtype = DType::kF32;
  view.rank = static_cast<int>(shape.size());
  int64_t columns = 1, rows = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    const int64_t extent = view.shape[d] = shape[static_cast<size_t>(d)];
    const bool is_column = labels[static_cast<size_t>(d)] >= 0;
    if (is_column && rows > 1) throw GraphError("a dimension of b's columns comes before a summed one");
    int64_t& size = is_column ? columns : rows;
    if (extent < 1 || extent > (int64_t{1} << 40) / size) {
      throw GraphError("b had shape " + describe(shape) + ", which is empty or too large");
    }
    view.strides[d] = is_column ? columns : rows * kStoredPanel;
    size *= extent;
  }
  return view;
}

// The operands, b as it was before it was stored in panels, and their labels.
struct Operands {
  TensorView views[2];
  std::span<const int64_t> labels[2];
};

Operands read_operands(SpecReader& reader, bool in_panels) {
  Operands operands;
  auto& [views, labels] = operands;
  views[0] = reader.input(0, "a", {.dtypes = kFloats});
  labels[0] = reader.list(static_cast<size_t>(views[0].rank), "the list of a's labels");
  if (in_panels) {
    reader.input(1, "the panels of b", {.rank = 3, .dtypes = DType::kF32, .dense = true});
    labels[1] = reader.list();
    check_range(static_cast<int64_t>(labels[1].size()), 0, kMaxRank, "the rank of b");
    views[1] = before_panels(reader.list(labels[1].size(), "the shape of b"), labels[1]);
  } else {
    views[1] = reader.input(1, "b", {.dtypes = kFloats});
    labels[1] = reader.list(static_cast<size_t>(views[1].rank), "the list of b's labels");
  }
  return operands;
}

// The dimensions of the output, and which operand gives its rows: its columns come from the one that has its last dimension.
void set_dims(Matmul& op, const Indices& indices, const TensorView& output) {
  op.rows_input = 0;
  op.out_rank = output.rank;
  for (int d = 0; d < output.rank; ++d) {
    const Index& index = indices.of_output[d];
    if (index.extent != 1) op.rows_input = index.present[0] && !index.present[1] ? 1 : 0;
  }
  for (int d = 0; d < output.rank; ++d) {
    const Index& index = indices.of_output[d];
    if (index.extent == 1) continue;
    const bool in_rows = index.present[op.rows_input], in_columns = index.present[1 - op.rows_input];
    op.dims.push_back({.role = !in_rows     ? Dim::kColumn
                               : in_columns ? Dim::kBatch
                                            : Dim::kRow,
                       .axis = d,
                       .extent = index.extent,
                       .row_stride = index.strides[op.rows_input],
                       .column_stride = index.strides[1 - op.rows_input]});
    op.out_strides.push_back(output.strides[d]);
  }
}

// How many elements the output has along the dimensions of a role, or kMaxExtent where these are more.
int64_t elements_of(const Matmul& op, Dim::Role role) {
  int64_t elements = 1;
  for (const Dim& dim : op.dims) {
    if (dim.role == role) elements = std::min(elements * dim.extent, kMaxExtent);
  }
  return elements;
}

// The summed dimensions, and how the product walks them.
void set_sums(Matmul& op, const Indices& indices, bool in_panels) {
  op.runs = summed_dims(indices, op.rows_input, in_panels);
  op.depth = op.runs.back();
  op.runs.pop_back();
  // A single element is adjacent to itself: what is never stepped over need not be gathered.
  const bool is_float32 = op.rows_dtype == DType::kF32;
  op.rows_adjacent = op.depth.extent == 0 || (is_float32 && (op.depth.row_stride == 1 || op.depth.extent == 1));
  op.columns_uniform = true;
  int64_t num_runs = 1, reach = op.depth.column_stride * op.depth.extent;
  for (auto dim = op.runs.rbegin(); dim != op.runs.rend(); ++dim) {
    op.columns_uniform &= dim->column_stride == reach;
    reach = dim->column_stride * dim->extent;
    num_runs *= dim->extent;
  }
  op.inner = num_runs * op.depth.extent;
  const int64_t rows = elements_of(op, Dim::kRow), columns = elements_of(op, Dim::kColumn);
  op.plan = ProductPlan(num_runs, op.depth.extent, columns, !op.rows_adjacent,
                        in_panels || rows <= kFewRows ? ProductPlan::kLongSums : ProductPlan::kShortSums);
}

// Checks that `panels` hold the matrix that the op multiplies with.
void check_panels(const Matmul& op, const TensorView& panels) {
  int64_t columns = 1;
  for (const Dim& dim : op.dims) {
    if (dim.role == Dim::kBatch) throw GraphError("b, in panels, has a batch dimension");
    if (dim.role == Dim::kColumn) columns *= dim.extent;
  }
  if (op.rows_input != 0 || (!op.dims.empty() && op.dims.back().column_stride != 1)) {
    throw GraphError("the output's last dimension is not the last of b, which is in panels");
  }
  check_shape(panels, "the panels of b", {ceil_div(columns, kStoredPanel), op.inner, kStoredPanel});
}

Box reads_of_a(const OpState& state, const Box& box) noexcept {
  Box read;
  int d = 0;
  for (const auto& [axis, extent] : static_cast<const Matmul&>(state).a_dims) {
    read.lo[d] = axis < 0 ? 0 : box.lo[axis];
    read.hi[d++] = axis < 0 ? extent : box.hi[axis];
  }
  return read;
}

PreparedOp prepare(const OpSpec& spec, bool in_panels) {
  SpecReader reader(spec);
  reader.output({.dense = true});
  const auto [views, labels] = read_operands(reader, in_panels);
  const Indices indices = read_indices(views, labels, spec.output);
  auto op = std::make_unique<Matmul>();
  set_dims(*op, indices, spec.output);
  op->rows_dtype = views[op->rows_input].dtype;
  op->columns_dtype = views[1 - op->rows_input].dtype;
  set_sums(*op, indices, in_panels);
  if (in_panels) check_panels(*op, spec.inputs[1]);

  // The epilogue sees neither operands nor dimensions of one element.
  std::vector<TensorView> inputs(spec.inputs.begin(), spec.inputs.end());
  for (size_t i = 2; i < inputs.size(); ++i) {
    check_shape(inputs[i], "input " + std::to_string(i) + ", which belongs to the epilogue,", shape_of(spec.output));
    inputs[i] = without_units(inputs[i], spec.output);
  }
  const TensorView output = without_units(spec.output, spec.output);
  SpecReader rest = reader.with_views(inputs, output);
  op->epilogue = Epilogue::parse(rest, 2, DType::kF32);
  PreparedOp prepared;
  prepared.run =
      in_panels ? run<RowsOfPanels> : visit_float(op->columns_dtype, []<class T>(T) -> RunTile { return run<Rows<T>>; });
  prepared.scratch_bytes = op->plan.scratch_bytes() + op->epilogue.scratch_bytes();
  for (int d = 0; d < views[0].rank; ++d) {
    const int label = static_cast<int>(labels[0][static_cast<size_t>(d)]);
    op->a_dims.emplace_back(std::max(label, -1), static_cast<int32_t>(views[0].shape[d]));
  }
  prepared.reads = reads_of_a;
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace

PreparedOp prepare_matmul(const OpSpec& spec) { return prepare(spec, false); }
PreparedOp prepare_matmul_panels(const OpSpec& spec) { return prepare(spec, true); }

}  // namespace aspen::cpu::ASPEN_TARGET
