// attention: a product (scores), a row program on it (softmax and the like), and the product of the result with values, one block
// of score rows at a time, so that only a block of the scores ever exists. The three are prepared as the ops that they are and
// run on boxes of their own; they meet in scratch memory.
//
// A causal mask makes the weights behind some column exactly zero, whatever the scores there, as long as these are not too large
// and the values they are multiplied with are finite. Then nothing is computed behind that column: the last two ops are prepared
// for several lengths of the rows.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "box.h"
#include "shapes.h"
#include "spec_reader.h"
#include "vmath.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_attention(const OpSpec& spec);
PreparedOp prepare_matmul(const OpSpec& spec);
PreparedOp prepare_rows(const OpSpec& spec);

namespace {

// A block of scores and what becomes of it stay in a part of the L2 cache.
constexpr int64_t kBlockBytes = 256 * 1024;

// Which of attention's inputs one of the three ops has, and which of its own is the result of the one before (-1: none).
struct PartInputs {
  size_t first_input = 0;
  size_t num_inputs = 0;
  int chained = -1;
};
struct Part : PartInputs {
  PreparedOp op;
};

// The row program and the last product, for rows of which only the first `length` elements count.
struct Prefix {
  int64_t length = 0;
  Part rows;
  Part values;
};

// An operand of a product, as seen from a tile.
struct Operand {
  size_t input = 0;
  TensorView view;
  int axes[kMaxRank] = {};  // the output's axis along which each dimension runs; -1: a tile reads all of it
};

struct Attention final : OpState {
  Part product;                  // the scores'
  std::vector<Prefix> prefixes;  // ascending; the last is whole
  int64_t reach = 0;             // row r has no other weights than zeros from column r + reach on, if
  float most_score = 0;          // no score is larger, and
  Operand operands[3];           // these are finite: what scores are the products of, and the values
  float depth = 1;               // how many products a score is the sum of
  TensorView scores;             // as a whole value, of which a block exists at a time
  TensorView weights;            // the same, what the row program makes of them
  std::vector<int> axes;         // of the output, for each axis of the scores but the last
  int out_rank = 0;
  int64_t block_rows = 1;
  size_t block_bytes = 0;  // of the scores; that of the weights follows, unless they take the scores' place
  bool in_place = false;
};

constexpr size_t kMaxInputs = 64;

// So many lengths of rows are told apart, multiples of what a sum along them takes at a time: they are added up in the same
// order.
constexpr int64_t kMostPrefixes = 16;
constexpr int64_t kLengthStep = 64;

// Runs a part on the box [lo, hi) of its output.
const char* run_part(const Part& part, const TileArgs& args, const void* chained, void* output, const int32_t* lo,
                     const int32_t* hi, std::byte* scratch) noexcept {
  const void* inputs[kMaxInputs + 1];
  for (size_t i = 0, from = part.first_input; i < part.num_inputs; ++i) {
    inputs[i] = static_cast<int>(i) == part.chained ? chained : args.inputs[from++];
  }
  return part.op.run({part.op.state.get(), inputs, output, lo, hi, scratch});
}

// The largest magnitude of an operand in what a tile reads of it: infinite where one is, or NaN.
float largest(const Operand& operand, const TileArgs& args) noexcept {
  LoopNest<1> nest(1);
  const auto* data = static_cast<const int32_t*>(args.inputs[operand.input]);
  for (int d = operand.view.rank - 1; d >= 0; --d) {
    const int axis = operand.axes[d];
    const int64_t lo = axis < 0 ? 0 : args.lo[axis];
    const int64_t extent = (axis < 0 ? operand.view.shape[d] : args.hi[axis]) - lo;
    if (extent <= 0) return 0;
    data += lo * operand.view.strides[d];
    nest.add_outside(extent, [&](int) { return operand.view.strides[d]; });
  }
  // Adjacent elements are walked innermost.
  for (int loop = 1; loop < nest.depth; ++loop) {
    if (nest.strides[loop][0] != 1) continue;
    std::swap(nest.strides[loop][0], nest.strides[0][0]);
    std::swap(nest.extents[loop], nest.extents[0]);
  }
  const int64_t count = nest.depth > 0 ? nest.extents[0] : 1;
  const int64_t step = nest.depth > 0 ? nest.strides[0][0] : 1;
  Ints most = {};  // bits of magnitudes, which are ordered as integers are, with NaN above infinity
  nest.for_each_plane(-1, [&](const int64_t* offsets) {
    const int32_t* from = data + offsets[0];
    int64_t i = 0;
    if (step == 1) {
      for (; i + kLanes <= count; i += kLanes) most = max(most, load(from + i) & ~kSignBit);
      if (i < count) most = max(most, load_partial(from + i, static_cast<int>(count - i)) & ~kSignBit);
      return;
    }
    for (; i < count; ++i) most = max(most, broadcast(from[i * step] & ~kSignBit));
  });
  int32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits = std::max<int32_t>(bits, most[lane]);
  return std::bit_cast<float>(std::min<int32_t>(bits, 0x7f800000));
}

bool may_skip(const Attention& op, const TileArgs& args) noexcept {
  if (op.prefixes.size() == 1) return false;
  return op.depth * largest(op.operands[0], args) * largest(op.operands[1], args) <= op.most_score &&
         largest(op.operands[2], args) < std::numeric_limits<float>::infinity();
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
  const bool skips = may_skip(op, args);
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
    const Prefix* prefix = &op.prefixes.back();
    if (skips) {
      prefix = op.prefixes.data();
      while (prefix->length < hi[rows] - 1 + op.reach && prefix != &op.prefixes.back()) ++prefix;
    }
    hi[last] = static_cast<int32_t>(prefix->length);
    // Where the whole values would begin for this block to lie in scratch memory.
    auto* const all_scores =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(scores) - static_cast<uintptr_t>(offset * size_of(op.scores.dtype)));
    auto* const all_weights = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(weights) -
                                                      static_cast<uintptr_t>(offset * size_of(op.weights.dtype)));
    if (const char* error = run_part(op.product, args, nullptr, all_scores, lo, hi, scratch)) return error;
    if (const char* error = run_part(prefix->rows, args, all_scores, all_weights, lo, hi, scratch)) return error;
    if (const char* error = run_part(prefix->values, args, all_weights, args.output, out_lo, out_hi, scratch)) return error;
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
TensorView dense_value(std::span<const int64_t> shape, DType dtype) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.shape[d] = shape[static_cast<size_t>(d)];
    view.strides[d] = stride;
    if (view.shape[d] < 1 || view.shape[d] > kMaxExtent || stride > (int64_t{1} << 50) / view.shape[d]) {
      throw GraphError("the scores have shape " + describe(shape) + ", which is empty or too large");
    }
    stride *= view.shape[d];
  }
  return view;
}

// Reads an attention from its spec, and prepares its parts.
class Preparation {
 public:
  explicit Preparation(const OpSpec& spec) : spec_(spec) {}

  PreparedOp prepared() {
    read_words();
    op_->product = part(kScores, length());
    op_->prefixes.push_back(prefix(length()));
    check_rows();
    find_axes();
    find_operands();
    add_shorter_prefixes();
    size_blocks();
    PreparedOp prepared;
    prepared.run = run;
    prepared.scratch_bytes = (op_->in_place ? 1 : 2) * op_->block_bytes + part_scratch_;
    prepared.state = std::move(op_);
    return prepared;
  }

 private:
  enum PartNumber { kScores, kRows, kValues };

  int last() const { return op_->scores.rank - 1; }
  int64_t length() const { return op_->scores.shape[last()]; }

  void read_words() {
    SpecReader reader(spec_);
    const auto shape = reader.list();
    check_range(static_cast<int64_t>(shape.size()), 2, kMaxRank, "the rank of the scores");
    op_->scores = dense_value(shape, reader.dtype("the dtype of the scores"));
    op_->weights = dense_value(shape, reader.dtype("the dtype of the weights"));
    op_->out_rank = spec_.output.rank;
    size_t taken = 0;
    for (const PartNumber number : {kScores, kRows, kValues}) {
      PartInputs& own = inputs_[number];
      own.num_inputs = static_cast<size_t>(reader.integer(1, kMaxInputs, "the number of a part's inputs"));
      const int64_t least = number == kScores ? -1 : 0;
      const int64_t most = number == kScores ? -1 : number == kRows ? static_cast<int64_t>(own.num_inputs) - 1 : 1;
      own.chained = static_cast<int>(reader.integer(least, most, "the place of the scores or weights among a part's inputs"));
      params_[number] = reader.list();
      own.first_input = taken;
      taken += own.num_inputs - (number == kScores ? 0 : 1);
    }
    op_->reach = reader.integer(1, length(), "how far weights reach beyond their row's number");
    op_->most_score = std::ldexp(1.0f, static_cast<int>(reader.integer(0, 127, "the binary exponent of the largest score")));
    reader.end_without_program();
    reader.end_inputs(taken);
  }

  // A part, checked as the op that it is, on rows of `count` scores.
  Part part(PartNumber number, int64_t count) {
    const PartInputs& own = inputs_[number];
    std::vector<TensorView> inputs;
    size_t from = own.first_input;
    for (int k = 0; k < static_cast<int>(own.num_inputs); ++k) {
      const TensorView& chained = number == kRows ? op_->scores : op_->weights;
      TensorView& view = inputs.emplace_back(k == own.chained ? chained : spec_.inputs[from++]);
      if (const int axis = count < length() ? row_axis(number, k) : -1; axis >= 0) view.shape[axis] = count;
    }
    TensorView output = number == kScores ? op_->scores : number == kRows ? op_->weights : spec_.output;
    if (number == kRows) output.shape[last()] = count;
    constexpr const char* kNames[3] = {"the product of the scores", "the row program", "the product with the values"};
    const auto prepare = number == kRows ? prepare_rows : prepare_matmul;
    Part part{own, prepare_part(kNames[number], prepare, OpSpec{inputs, output, params_[number]})};
    part_scratch_ = std::max(part_scratch_, part.op.scratch_bytes);
    return part;
  }
  Prefix prefix(int64_t count) {
    Part rows = part(kRows, count);
    return {count, std::move(rows), part(kValues, count)};
  }
  // The dimension of input k of a part along which rows of scores run; -1: none. Of values it is known from find_axes on.
  int row_axis(PartNumber number, int k) const {
    if (number == kRows) return last();
    const int chained = inputs_[kValues].chained;
    return k == chained ? last() : k == 1 - chained ? values_row_axis_ : -1;
  }

  // Rows are along the last axis of the scores, which the last product sums away.
  void check_rows() const {
    WordReader rows(params_[kRows]);
    if (const auto axes = rows.list(); axes.size() != 1 || axes[0] != last()) {
      throw GraphError("the row program does not run along the last axis of the scores");
    }
  }
  void find_axes() {
    WordReader product(params_[kValues]);
    std::span<const int64_t> labels[2];
    for (auto& own : labels) own = product.list();
    const auto weights = labels[inputs_[kValues].chained];
    values_labels_ = labels[1 - inputs_[kValues].chained];
    for (int d = 0; d <= last(); ++d) {
      const int64_t label = weights[static_cast<size_t>(d)];
      if ((label < 0) != (d == last())) {
        throw GraphError("the product with the values does not sum exactly the last axis of the weights");
      }
      if (d < last()) op_->axes.push_back(static_cast<int>(label));
    }
    const auto summed = std::ranges::find(values_labels_, weights[static_cast<size_t>(last())]);
    values_row_axis_ = static_cast<int>(summed - values_labels_.begin());
  }

  // What must be finite, for keys to be left out.
  void find_operands() {
    WordReader scores(params_[kScores]);
    for (size_t i = 0; i < 3; ++i) {
      const bool is_values = i == 2;
      const auto labels = is_values ? values_labels_ : scores.list();
      Operand& operand = op_->operands[i];
      operand.input = is_values ? inputs_[kValues].first_input : i;
      operand.view = spec_.inputs[operand.input];
      for (size_t d = 0; d < labels.size(); ++d) {
        const auto label = static_cast<int>(labels[d]);
        const bool is_whole = label < 0 || (!is_values && label == last());
        operand.axes[d] = is_whole ? -1 : is_values ? label : op_->axes[static_cast<size_t>(label)];
        if (i == 0 && label < 0) op_->depth *= static_cast<float>(operand.view.shape[d]);
      }
    }
  }

  void add_shorter_prefixes() {
    if (!std::ranges::all_of(op_->operands, [](const Operand& own) { return own.view.dtype == DType::kF32; })) return;
    if (op_->reach >= length()) return;
    const int64_t step = (length() - 1) / (kMostPrefixes * kLengthStep) * kLengthStep + kLengthStep;
    for (int64_t count = (length() - 1) / step * step; count > 0; count -= step) {
      op_->prefixes.insert(op_->prefixes.begin(), prefix(count));
    }
  }

  void size_blocks() {
    const auto scores = size_of(op_->scores.dtype), weights = size_of(op_->weights.dtype);
    op_->in_place = scores == 4 && weights == 4;
    const int64_t row_bytes = length() * std::max(scores, weights);
    op_->block_rows = std::clamp<int64_t>(kBlockBytes / row_bytes, 1, op_->scores.shape[last() - 1]);
    op_->block_bytes = static_cast<size_t>((op_->block_rows * row_bytes + 63) / 64 * 64);
  }

  const OpSpec& spec_;
  std::unique_ptr<Attention> op_ = std::make_unique<Attention>();
  std::span<const int64_t> params_[3];
  PartInputs inputs_[3];
  std::span<const int64_t> values_labels_;  // of the last product
  int values_row_axis_ = -1;
  size_t part_scratch_ = 0;
};

}  // namespace

PreparedOp prepare_attention(const OpSpec& spec) { return Preparation(spec).prepared(); }

}  // namespace aspen::cpu::ASPEN_TARGET
