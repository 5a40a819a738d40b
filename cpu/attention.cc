// attention: a product (scores), a row program on it (softmax and the like), and the product of the result with values, one block
// of score rows at a time, so that only a block of the scores ever exists. The three are prepared as the ops that they are and
// run on boxes of their own; they meet in scratch memory.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aspen_jax/engine/words.h"
#include "shapes.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_attention(const OpSpec& spec);
PreparedOp prepare_matmul(const OpSpec& spec);
PreparedOp prepare_rows(const OpSpec& spec);

namespace {

// A block of scores and what becomes of it stay in a part of the L2 cache.
constexpr int64_t kBlockBytes = 256 * 1024;

// One of the three ops: which of attention's inputs it has, and which of its own is the result of the one before (-1: none).
struct Part {
  PreparedOp op;
  size_t first_input = 0;
  size_t num_inputs = 0;
  int chained = -1;
};

struct Attention final : OpState {
  Part parts[3];
  TensorView scores;      // as a whole value, of which a block exists at a time
  TensorView weights;     // the same, what the row program makes of them
  std::vector<int> axes;  // of the output, for each axis of the scores but the last
  int out_rank = 0;
  int64_t block_rows = 1;
  size_t block_bytes = 0;  // of the scores; that of the weights follows, unless they take the scores' place
  bool in_place = false;
};

constexpr size_t kMaxInputs = 64;

// Runs a part on the box [lo, hi) of its output.
const char* run_part(const Part& part, const TileArgs& args, const void* chained, void* output, const int32_t* lo,
                     const int32_t* hi, std::byte* scratch) noexcept {
  const void* inputs[kMaxInputs + 1];
  for (size_t i = 0, from = part.first_input; i < part.num_inputs; ++i) {
    inputs[i] = static_cast<int>(i) == part.chained ? chained : args.inputs[from++];
  }
  return part.op.run({part.op.state.get(), inputs, output, lo, hi, scratch});
}

const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Attention*>(args.state);
  const int last = op.scores.rank - 1, rows = last - 1;
  for (int d = 0; d < op.out_rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
  }
  int32_t lo[kMaxRank], hi[kMaxRank], out_lo[kMaxRank], out_hi[kMaxRank];
  std::copy_n(args.lo, op.out_rank, out_lo);
  std::copy_n(args.hi, op.out_rank, out_hi);
  lo[last] = 0;
  hi[last] = static_cast<int32_t>(op.scores.shape[last]);
  for (int d = 0; d < last; ++d) lo[d] = args.lo[op.axes[d]];
  std::byte* const scores = args.scratch;
  std::byte* const weights = op.in_place ? scores : scores + op.block_bytes;
  std::byte* const scratch = args.scratch + (op.in_place ? 1 : 2) * op.block_bytes;
  for (;;) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) {
      const int32_t step = d == rows ? static_cast<int32_t>(op.block_rows) : 1;
      hi[d] = std::min(lo[d] + step, args.hi[op.axes[d]]);
      out_lo[op.axes[d]] = lo[d];
      out_hi[op.axes[d]] = hi[d];
      offset += lo[d] * op.scores.strides[d];
    }
    // Where the whole values would begin for this block to lie in scratch memory.
    auto* const all_scores =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(scores) - static_cast<uintptr_t>(offset * size_of(op.scores.dtype)));
    auto* const all_weights = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(weights) -
                                                      static_cast<uintptr_t>(offset * size_of(op.weights.dtype)));
    if (const char* error = run_part(op.parts[0], args, nullptr, all_scores, lo, hi, scratch)) return error;
    if (const char* error = run_part(op.parts[1], args, all_scores, all_weights, lo, hi, scratch)) return error;
    if (const char* error = run_part(op.parts[2], args, all_weights, args.output, out_lo, out_hi, scratch)) return error;
    int d = rows;
    for (; d >= 0; --d) {
      lo[d] = hi[d];
      if (lo[d] < args.hi[op.axes[d]]) break;
      lo[d] = args.lo[op.axes[d]];
    }
    if (d < 0) return nullptr;
  }
}

// A dense value of this shape and dtype.
TensorView dense_value(std::span<const int64_t> shape, int64_t dtype) {
  TensorView view;
  view.dtype = static_cast<DType>(dtype);
  view.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.shape[d] = shape[static_cast<size_t>(d)];
    view.strides[d] = stride;
    if (view.shape[d] < 1 || view.shape[d] > kMaxExtent || stride > (int64_t{1} << 50) / view.shape[d]) {
      throw GraphError("attention's scores have shape " + describe(view) + ", which is empty or too large");
    }
    stride *= view.shape[d];
  }
  return view;
}

}  // namespace

PreparedOp prepare_attention(const OpSpec& spec) {
  WordReader words(spec.params);
  auto op = std::make_unique<Attention>();
  const auto shape = words.list();
  if (shape.size() < 2 || shape.size() > kMaxRank)
    throw GraphError("attention's scores have rank " + std::to_string(shape.size()));
  op->scores = dense_value(shape, words.integer(0, kNumDTypes - 1, "the dtype of attention's scores"));
  op->weights = dense_value(shape, words.integer(0, kNumDTypes - 1, "the dtype of attention's weights"));
  op->out_rank = spec.output.rank;
  std::span<const int64_t> params[3];
  size_t taken = 0;
  for (int i = 0; i < 3; ++i) {
    Part& part = op->parts[i];
    part.num_inputs = static_cast<size_t>(words.integer(1, kMaxInputs, "the number of inputs of a part of attention"));
    part.chained = static_cast<int>(words.integer(i == 0 ? -1 : 0,
                                                  i == 0   ? -1
                                                  : i == 1 ? static_cast<int64_t>(part.num_inputs) - 1
                                                           : 1,
                                                  "the place of the scores or weights among a part's inputs"));
    params[i] = words.list();
    part.first_input = taken;
    taken += part.num_inputs - (i > 0 ? 1 : 0);
  }
  words.integer(0, 0, "attention's mark for an epilogue");
  if (!words.done()) throw GraphError("there are words after attention's parts");
  if (taken != spec.inputs.size()) {
    throw GraphError("attention has " + std::to_string(spec.inputs.size()) + " inputs where its parts have " +
                     std::to_string(taken));
  }

  // Each part is checked as the op that it is.
  size_t part_scratch = 0;
  for (int i = 0; i < 3; ++i) {
    Part& part = op->parts[i];
    std::vector<TensorView> inputs;
    size_t from = part.first_input;
    for (size_t k = 0; k < part.num_inputs; ++k) {
      const bool is_chained = static_cast<int>(k) == part.chained;
      inputs.push_back(is_chained ? (i == 1 ? op->scores : op->weights) : spec.inputs[from++]);
    }
    const TensorView& output = i == 0 ? op->scores : i == 1 ? op->weights : spec.output;
    const OpSpec own{inputs, output, params[i]};
    part.op = i == 1 ? prepare_rows(own) : prepare_matmul(own);
    part_scratch = std::max(part_scratch, part.op.scratch_bytes);
  }

  // Rows are along the last axis of the scores, which the last product sums away.
  const int last = op->scores.rank - 1;
  WordReader rows(params[1]);
  if (const auto axes = rows.list(); axes.size() != 1 || axes[0] != last) {
    throw GraphError("the row program of attention does not run along the last axis of its scores");
  }
  WordReader product(params[2]);
  auto labels = product.list();
  if (op->parts[2].chained == 1) labels = product.list();
  for (int d = 0; d <= last; ++d) {
    if ((labels[static_cast<size_t>(d)] < 0) != (d == last)) {
      throw GraphError("attention's last product does not sum exactly the last axis of its weights");
    }
    if (d < last) op->axes.push_back(static_cast<int>(labels[static_cast<size_t>(d)]));
  }

  op->in_place = size_of(op->scores.dtype) == 4 && size_of(op->weights.dtype) == 4;
  const int64_t row_bytes = op->scores.shape[last] * std::max(size_of(op->scores.dtype), size_of(op->weights.dtype));
  op->block_rows = std::clamp<int64_t>(kBlockBytes / row_bytes, 1, op->scores.shape[last - 1]);
  op->block_bytes = static_cast<size_t>((op->block_rows * row_bytes + 63) / 64 * 64);
  PreparedOp prepared;
  prepared.run = run;
  prepared.scratch_bytes = (op->in_place ? 1 : 2) * op->block_bytes + part_scratch;
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace aspen::cpu::ASPEN_TARGET
