// matmul: a [B,M,K] times b [B,K,N], through any views; float32.
#include <memory>

#include "aspen_jax/engine/words.h"
#include "epilogue.h"
#include "product.h"
#include "shapes.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_matmul(const OpSpec& spec);

namespace {

enum { kBatch, kRow, kColumn };

struct Matmul final : OpState {
  int64_t a_strides[3];
  int64_t b_strides[3];
  int64_t out_rows;     // M
  int64_t out_columns;  // N
  ProductPlan plan;
  Epilogue epilogue;
};

// The rows of one tile in one batch entry.
struct Rows {
  const Matmul& op;
  const TileArgs& args;
  const float* a;  // at the tile's first row
  const float* b;  // at the tile's first column
  float* out;      // at the tile's first element
  int64_t batch;
  std::byte* epilogue_scratch;

  void point(int64_t row, int rows, const Chunk& chunk, const float** pointers, float* gathered) const {
    const int64_t step = op.a_strides[kColumn];
    const float* from = a + row * op.a_strides[kRow] + chunk.begin * step;
    if (step == 1) {
      for (int r = 0; r < rows; ++r) pointers[r] = from + r * op.a_strides[kRow];
      return;
    }
    // Adjacent rows first: they are adjacent in memory where `a` is a transpose.
    for (int64_t k = 0; k < chunk.depth; ++k) {
      for (int r = 0; r < rows; ++r) gathered[r * chunk.depth + k] = from[r * op.a_strides[kRow] + k * step];
    }
    for (int r = 0; r < rows; ++r) pointers[r] = gathered + r * chunk.depth;
  }

  void pack(int64_t column, int64_t columns, const Chunk& chunk, float* packed) const {
    aspen::cpu::ASPEN_TARGET::pack(b + column * op.b_strides[kColumn] + chunk.begin * op.b_strides[kRow], op.b_strides[kRow],
                                   op.b_strides[kColumn], chunk.depth, columns, packed, 0, chunk.depth);
  }

  const float* weights(int64_t column, const Chunk& chunk) const {
    return op.b_strides[kColumn] == 1 ? b + column + chunk.begin * op.b_strides[kRow] : nullptr;
  }
  int64_t weights_stride() const { return op.b_strides[kRow]; }

  float* direct(int64_t row, int, int64_t column) const {
    return op.epilogue.empty() ? out + row * op.out_columns + column : nullptr;
  }
  int64_t direct_stride() const { return op.out_columns; }

  void finish(int64_t row, int rows, int64_t column, int64_t columns, const float* sums, int64_t stride) const {
    const int64_t at[3] = {batch, args.lo[kRow] + row, args.lo[kColumn] + column};
    op.epilogue.apply(args, at, kRow, rows, columns, sums, stride, epilogue_scratch);
  }
};

const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Matmul*>(args.state);
  const int32_t* lo = args.lo;
  const int32_t* hi = args.hi;
  for (int64_t batch = lo[kBatch]; batch < hi[kBatch]; ++batch) {
    const Rows rows{
        .op = op,
        .args = args,
        .a = static_cast<const float*>(args.inputs[0]) + batch * op.a_strides[kBatch] + lo[kRow] * op.a_strides[kRow],
        .b = static_cast<const float*>(args.inputs[1]) + batch * op.b_strides[kBatch] + lo[kColumn] * op.b_strides[kColumn],
        .out = op.epilogue.empty()
                   ? static_cast<float*>(args.output) + (batch * op.out_rows + lo[kRow]) * op.out_columns + lo[kColumn]
                   : nullptr,
        .batch = batch,
        .epilogue_scratch = args.scratch + op.plan.scratch_bytes(),
    };
    op.plan.run(rows, hi[kRow] - lo[kRow], hi[kColumn] - lo[kColumn], args.scratch);
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_matmul(const OpSpec& spec) {
  if (spec.inputs.size() < 2) throw GraphError("matmul needs two inputs, a and b");
  const TensorView& a = spec.inputs[0];
  const TensorView& b = spec.inputs[1];
  check_rank(a, 3, "matmul's input a");
  check_rank(b, 3, "matmul's input b");
  check_rank(spec.output, 3, "matmul's output");
  check_float32(a, "matmul's input a");
  check_float32(b, "matmul's input b");
  check_dense(spec.output, "matmul's output");
  const int64_t inner = a.shape[kColumn];
  if (b.shape[kBatch] != a.shape[kBatch] || b.shape[kRow] != inner || spec.output.shape[kBatch] != a.shape[kBatch] ||
      spec.output.shape[kRow] != a.shape[kRow] || spec.output.shape[kColumn] != b.shape[kColumn]) {
    throw GraphError("matmul's shapes " + describe(a) + " and " + describe(b) + " do not give its output's shape " +
                     describe(spec.output));
  }
  auto op = std::make_unique<Matmul>();
  for (int i = 0; i < 3; ++i) {
    op->a_strides[i] = used_stride(a, i);
    op->b_strides[i] = used_stride(b, i);
  }
  // A single element is adjacent to itself: what is never stepped over need not be gathered.
  if (inner <= 1) op->a_strides[kColumn] = 1;
  if (b.shape[kColumn] <= 1) op->b_strides[kColumn] = 1;
  op->out_rows = spec.output.shape[kRow];
  op->out_columns = spec.output.shape[kColumn];
  op->plan = ProductPlan(1, inner, op->out_columns, op->a_strides[kColumn] != 1);
  WordReader words(spec.params);
  op->epilogue = Epilogue::parse(words, spec, 2, DType::kF32);
  PreparedOp prepared;
  prepared.run = run;
  prepared.scratch_bytes = op->plan.scratch_bytes() + op->epilogue.scratch_bytes();
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace aspen::cpu::ASPEN_TARGET
