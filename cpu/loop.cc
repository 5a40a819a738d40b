// loop: turns of a body on one worker. The body is a list of parts, each an op that is prepared like any other and runs on all of
// its output. What a part writes lies in scratch memory, so that small values and the weights stay in the worker's cache.
//
// Parts that are worth it are cut among idle workers, who keep what they read in their caches from turn to turn (team.h).
//
// There are so many turns, or as many as begin with a first carry that is true. A run that is over ends at a turn. A tile that is
// to pause does so between two turns, and keeps what they hand on.
//
// Nothing is copied from turn to turn. The first turn reads the carries where the caller has them. Each turn writes those of the
// next into one of two buffers, in turns, and the last one writes them where the op's outputs are.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aspen_jax/engine/float_mode.h"
#include "aspen_jax/engine/team.h"
#include "parts.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_loop(const OpSpec& spec);

namespace {

constexpr int64_t kMaxParts = 4096;
constexpr int64_t kMaxValues = 1 << 16;
// Of values that turns compute. It bounds what a graph can ask for.
constexpr int64_t kMaxScratch = int64_t{1} << 30;
constexpr int64_t kAlignment = 64;

// What a part reads: a value of the body, from some byte on.
struct Source {
  size_t value;
  int64_t offset;
};

struct Part {
  PreparedOp op;
  std::vector<Source> inputs;
  std::vector<size_t> outputs;  // values
  int32_t hi[kMaxRank] = {};    // the box of all of the first output
  // Where workers may share it: an axis of that box, in multiples of so many. -1: one worker computes it.
  int cut_axis = -1;
  int32_t cut_unit = 1;

  int64_t num_units() const { return cut_axis < 0 ? 1 : (int64_t{hi[cut_axis]} + cut_unit - 1) / cut_unit; }
};

// What is written to an output of the op in each turn, or by the last one.
struct Result {
  size_t value;
  int64_t bytes;  // of the value
};

// What each turn hands on.
struct Carry {
  size_t read, written;  // values
  int64_t bytes;
  int64_t buffers[2];  // in what the tile keeps
};

// An input with an entry for each turn.
struct Entry {
  size_t value;
  int64_t bytes;
};

struct Loop final : OpState {
  int64_t turns = 0;
  bool is_reverse = false;
  bool is_while = false;
  size_t num_constants = 0;
  size_t num_values = 0;
  std::vector<Carry> carries;
  std::vector<Entry> entries;
  std::vector<Result> stacked;  // the outputs behind the carries
  std::vector<Part> parts;
  std::vector<int64_t> places;  // in scratch, of each value that lies there
  size_t num_pointers = 0;      // of the part with the most inputs
  size_t most_further = 0;
  int64_t scratch_bytes = 0;  // of all of these
  // Of the number of turns that have ended, and the carries' buffers.
  int64_t kept_bytes = 64;
  int most_shares = 1;  // of a part
  size_t of_parts = 0;  // scratch bytes of the part that wants the most
};

// Where the values are in a turn.
class Run {
 public:
  Run(const Loop& loop, const TileArgs& args)
      : loop_(loop),
        args_(args),
        values_(reinterpret_cast<std::byte**>(args.scratch)),
        inputs_(reinterpret_cast<const void**>(args.scratch + loop.num_values * sizeof(void*))),
        further_(reinterpret_cast<void**>(args.scratch + (loop.num_values + loop.num_pointers) * sizeof(void*))) {
    for (size_t i = 0; i < loop.num_constants; ++i) values_[i] = input(i);
    for (size_t i = 0; i < loop.num_values; ++i) {
      if (loop.places[i] >= 0) values_[i] = args.scratch + loop.places[i];
    }
  }

  const char* run() noexcept {
    const bool has_team = args_.team != nullptr && loop_.most_shares > 1 && args_.team->open(loop_.most_shares, loop_.of_parts);
    team_ = has_team ? args_.team : nullptr;
    const char* const message = run_turns();
    if (has_team) args_.team->close();
    return message;
  }

 private:
  const char* run_turns() noexcept {
    auto& ended = *reinterpret_cast<int64_t*>(args_.kept);
    int64_t turn = std::exchange(ended, 0);
    for (place(turn); goes_on(turn); place(++turn)) {
      if (const Beat beat = args_.pulse == nullptr ? Beat::kGoOn : (*args_.pulse)(); beat != Beat::kGoOn) [[unlikely]] {
        if (beat == Beat::kEnd) return "the run is over";
        ended = turn;
        return args_.pulse->paused;
      }
      for (const Part& part : loop_.parts) {
        if (const char* const error = compute(part)) return error;
      }
    }
    if (turn > 0 && !loop_.is_while) return nullptr;
    for (size_t i = 0; i < loop_.carries.size(); ++i) {
      std::memcpy(output(i), values_[loop_.carries[i].read], static_cast<size_t>(loop_.carries[i].bytes));
    }
    return nullptr;
  }

  // Places of entries beyond the last turn are never read.
  bool goes_on(int64_t turn) const noexcept {
    return loop_.is_while ? *values_[loop_.carries[0].read] != std::byte{0} : turn < loop_.turns;
  }

  std::byte* input(size_t i) const { return static_cast<std::byte*>(const_cast<void*>(args_.inputs[i])); }
  std::byte* output(size_t i) const { return static_cast<std::byte*>(i == 0 ? args_.output : args_.further[i - 1]); }

  void place(int64_t turn) noexcept {
    const size_t num_carries = loop_.carries.size();
    for (size_t i = 0; i < num_carries; ++i) {
      const Carry& carry = loop_.carries[i];
      values_[carry.read] = turn == 0 ? input(loop_.num_constants + i) : args_.kept + carry.buffers[(turn - 1) & 1];
      const bool is_last = turn + 1 == loop_.turns && !loop_.is_while;
      values_[carry.written] = is_last ? output(i) : args_.kept + carry.buffers[turn & 1];
    }
    const int64_t index = loop_.is_reverse ? loop_.turns - 1 - turn : turn;
    for (size_t i = 0; i < loop_.entries.size(); ++i) {
      values_[loop_.entries[i].value] = input(loop_.num_constants + num_carries + i) + index * loop_.entries[i].bytes;
    }
    for (size_t i = 0; i < loop_.stacked.size(); ++i) {
      values_[loop_.stacked[i].value] = output(num_carries + i) + index * loop_.stacked[i].bytes;
    }
  }

  const char* compute(const Part& part) noexcept {
    static constexpr int32_t kLow[kMaxRank] = {};
    for (size_t i = 0; i < part.inputs.size(); ++i) inputs_[i] = values_[part.inputs[i].value] + part.inputs[i].offset;
    for (size_t i = 1; i < part.outputs.size(); ++i) further_[i - 1] = values_[part.outputs[i]];
    std::byte* const scratch = args_.scratch + loop_.scratch_bytes;
    if (team_ != nullptr && part.cut_axis >= 0) {
      const int num_shares = static_cast<int>(std::min<int64_t>(part.num_units(), team_->size()));
      Shared shared{*this, part};
      if (num_shares > 1) return team_->run(run_share, &shared, num_shares, scratch);
    }
    return compute_box(part, kLow, part.hi, scratch);
  }

  struct Shared {
    const Run& run;
    const Part& part;
  };

  // Of all workers, each with its mode of computing.
  static const char* run_share(void* context, int share, int num_shares, std::byte* scratch) noexcept {
    const XlaFloatMode mode;
    const auto& [run, part] = *static_cast<const Shared*>(context);
    int32_t lo[kMaxRank] = {}, hi[kMaxRank];
    std::ranges::copy(part.hi, hi);
    const int64_t units = part.num_units();
    lo[part.cut_axis] = static_cast<int32_t>(units * share / num_shares * part.cut_unit);
    hi[part.cut_axis] =
        static_cast<int32_t>(std::min<int64_t>(units * (share + 1) / num_shares * part.cut_unit, part.hi[part.cut_axis]));
    return run.compute_box(part, lo, hi, scratch);
  }

  const char* compute_box(const Part& part, const int32_t* lo, const int32_t* hi, std::byte* scratch) const noexcept {
    return part.op.run({part.op.state.get(), inputs_, values_[part.outputs[0]], lo, hi, scratch, further_});
  }

  const Loop& loop_;
  const TileArgs& args_;
  std::byte** values_;
  const void** inputs_;
  void** further_;
  Team* team_ = nullptr;
};

// What decays from turn to turn ends as denormal numbers, at which processors are a hundred times slower. XLA's loops flush them.
const char* run_loop(const TileArgs& args) noexcept {
  const XlaFloatMode mode;
  return Run(*static_cast<const Loop*>(args.state), args).run();
}

// Reads the words of a loop.
class LoopReader {
 public:
  explicit LoopReader(const OpSpec& spec) : reader_(spec), spec_(spec), loop_(std::make_unique<Loop>()) {}

  PreparedOp read() {
    loop_->turns = reader_.integer(0, kMaxExtent, "the number of turns");
    loop_->is_reverse = reader_.flag("whether the turns go backwards");
    loop_->is_while = reader_.flag("whether the first carry says that there is a turn");
    loop_->num_constants = static_cast<size_t>(reader_.integer(0, num_inputs(), "the number of constants"));
    const int64_t most = num_inputs() - static_cast<int64_t>(loop_->num_constants);
    const auto num_carries = static_cast<size_t>(reader_.integer(0, most, "the number of carries"));
    read_inputs(num_carries);
    const int64_t num_parts = reader_.integer(0, kMaxParts, "the number of parts");
    for (int64_t i = 0; i < num_parts; ++i) read_part(i);
    read_results(num_carries);
    reader_.end_without_program();
    check_while();
    place();
    const auto scratch = static_cast<size_t>(loop_->scratch_bytes) + loop_->of_parts;
    const auto kept = static_cast<size_t>(loop_->kept_bytes);
    const bool may_not_end = loop_->is_while;
    return {std::move(loop_), run_loop, scratch, nullptr, kept, may_not_end};
  }

 private:
  int64_t num_inputs() const { return static_cast<int64_t>(spec_.inputs.size()); }

  // A value of the body: its dtype, and its shape as a list. It is dense.
  TensorView read_value() { return read_shape(reader_.dtype("the dtype of a value in a loop")); }

  TensorView read_shape(DType dtype) {
    TensorView view;
    view.dtype = dtype;
    const auto shape = reader_.list();
    check_range(static_cast<int64_t>(shape.size()), 0, kMaxRank, "the rank of a value in a loop");
    view.rank = static_cast<int>(shape.size());
    int64_t elements = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      view.shape[d] = shape[static_cast<size_t>(d)];
      check_range(view.shape[d], 0, kMaxExtent, "an extent of a value in a loop");
      view.strides[d] = elements;
      if (__builtin_mul_overflow(elements, std::max<int64_t>(view.shape[d], 1), &elements) || elements > kMaxScratch) {
        throw GraphError("a value in a loop, of shape " + describe(shape) + ", is too large");
      }
    }
    return view;
  }

  static int64_t bytes_of(const TensorView& view) {
    int64_t elements = 1;
    for (int d = 0; d < view.rank; ++d) elements *= view.shape[d];
    return elements * size_of(view.dtype);
  }

  // `view`, which is given from outside, is the value, or has an entry of it for each turn.
  void check_given(const TensorView& view, const TensorView& value, bool is_stacked, const std::string& what) const {
    std::vector<int64_t> shape(value.shape, value.shape + value.rank);
    if (is_stacked) shape.insert(shape.begin(), loop_->turns);
    check_shape(view, what, shape);
    if (view.dtype != value.dtype) throw GraphError(what + " has another dtype in the body of the loop");
    if (!is_dense(view)) throw GraphError(what + " is not dense and row-major; copy it first");
  }

  size_t add(const TensorView& value) {
    check_range(static_cast<int64_t>(values_.size()), 0, kMaxValues - 1, "the number of values in a loop");
    values_.push_back(value);
    loop_->places.push_back(-1);
    return values_.size() - 1;
  }

  void read_inputs(size_t num_carries) {
    const auto count = static_cast<size_t>(reader_.integer(num_inputs(), num_inputs(), "the number of inputs of a loop's body"));
    for (size_t i = 0; i < count; ++i) {
      const TensorView value = read_value();
      const bool is_stacked = i >= loop_->num_constants + num_carries;
      check_given(spec_.inputs[i], value, is_stacked, "input " + std::to_string(i));
      const size_t number = add(value);
      if (is_stacked) loop_->entries.push_back({number, bytes_of(value)});
      if (!is_stacked && i >= loop_->num_constants) loop_->carries.push_back({number, 0, bytes_of(value), {}});
    }
  }

  void read_part(int64_t index) {
    Part& part = loop_->parts.emplace_back();
    const Kernel& kernel = part_kernel(reader_.list());
    const std::string what = "part " + std::to_string(index) + " (" + kernel.name + ")";
    const auto words = reader_.list();
    std::vector<TensorView> inputs;
    const int64_t num_inputs = reader_.integer(0, kMaxValues, "the number of inputs of a part");
    for (int64_t i = 0; i < num_inputs; ++i) inputs.push_back(read_view(part, what));
    const int64_t num_outputs = reader_.integer(1, kMaxValues, "the number of outputs of a part");
    std::vector<TensorView> outputs;
    for (int64_t i = 0; i < num_outputs; ++i) {
      outputs.push_back(read_value());
      part.outputs.push_back(add(outputs.back()));
      is_written_.resize(values_.size());
      is_written_.back() = true;
    }
    const TensorView& first = outputs.front();
    for (const TensorView& output : outputs) {
      if (!std::ranges::equal(shape_of(output), shape_of(first))) throw GraphError(what + " has outputs of several shapes");
    }
    if (outputs.size() > 1 && !kernel.has_further) throw GraphError(what + " writes one output alone");
    for (int d = 0; d < first.rank; ++d) part.hi[d] = static_cast<int32_t>(first.shape[d]);
    const std::span<const TensorView> further = std::span(outputs).subspan(1);
    part.op = prepare_part(what.c_str(), kernel.prepare, {inputs, first, words, further});
    loop_->num_pointers = std::max(loop_->num_pointers, part.inputs.size());
    loop_->most_further = std::max(loop_->most_further, further.size());
    loop_->of_parts = std::max(loop_->of_parts, part.op.scratch_bytes);
    read_cut(part, first.rank);
    // A tile is never empty, and kernels count on that.
    if (is_empty(first)) {
      loop_->parts.pop_back();
    }
  }

  // The axis along which workers may share a part, counted from 1, and in multiples of how many; two zeros where one computes it.
  void read_cut(Part& part, int rank) {
    part.cut_axis = static_cast<int>(reader_.integer(0, rank, "the axis along which a part is shared")) - 1;
    const int64_t unit = reader_.integer(0, kMaxExtent, "the multiples in which a part is shared");
    if ((unit > 0) != (part.cut_axis >= 0)) throw GraphError("a part of a loop is shared along no axis, or in multiples of 0");
    if (part.cut_axis < 0) return;
    part.cut_unit = static_cast<int32_t>(unit);
    const int64_t most = std::min<int64_t>(part.num_units(), Team::kMost);
    loop_->most_shares = std::max(loop_->most_shares, static_cast<int>(most));
  }

  // Which value a part reads, from which element on, and the shape and strides of what it sees.
  TensorView read_view(Part& part, const std::string& what) {
    const auto value =
        static_cast<size_t>(reader_.integer(0, static_cast<int64_t>(values_.size()) - 1, "the value that a part reads"));
    const int64_t offset = reader_.integer(0, kMaxScratch, "the first element that a part reads");
    const auto shape = reader_.list();
    check_range(static_cast<int64_t>(shape.size()), 0, kMaxRank, "the rank of what a part reads");
    const auto strides = reader_.list(shape.size(), -kMaxScratch, kMaxScratch, "the strides of what a part reads");
    TensorView view;
    view.dtype = values_[value].dtype;
    view.rank = static_cast<int>(shape.size());
    int64_t least = offset, most = offset;
    bool fits = true;
    for (int d = 0; d < view.rank; ++d) {
      view.shape[d] = shape[static_cast<size_t>(d)];
      view.strides[d] = strides[static_cast<size_t>(d)];
      check_range(view.shape[d], 0, kMaxExtent, "an extent of what a part reads");
      int64_t reach = 0;
      fits = fits && !__builtin_mul_overflow(view.strides[d], std::max<int64_t>(view.shape[d] - 1, 0), &reach) &&
             !__builtin_add_overflow(reach < 0 ? least : most, reach, reach < 0 ? &least : &most);
    }
    const int64_t elements = bytes_of(values_[value]) / size_of(view.dtype);
    if (!is_empty(view) && (!fits || least < 0 || most >= elements)) {
      throw GraphError(what + " reads beyond the value");
    }
    part.inputs.push_back({value, is_empty(view) ? 0 : offset * size_of(view.dtype)});
    return view;
  }

  void read_results(size_t num_carries) {
    const size_t count = 1 + spec_.further.size();
    is_written_.resize(values_.size());
    const auto outputs = static_cast<int64_t>(count);
    reader_.integer(outputs, outputs, "the number of results of a loop's body");
    std::vector<bool> is_taken(values_.size());
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<size_t>(
          reader_.integer(0, static_cast<int64_t>(values_.size()) - 1, "the value that is a result of a loop's body"));
      const TensorView result = read_shape(values_[value].dtype);
      const std::string what = "output " + std::to_string(i);
      if (!is_written_[value] || is_taken[value]) throw GraphError(what + " of the loop is no value of its own");
      is_taken[value] = true;
      if (bytes_of(result) != bytes_of(values_[value])) throw GraphError(what + " has more or fewer elements in the body");
      check_given(i == 0 ? spec_.output : spec_.further[i - 1], result, i >= num_carries, what);
      if (i >= num_carries) {
        loop_->stacked.push_back({value, bytes_of(values_[value])});
        continue;
      }
      Carry& carry = loop_->carries[i];
      check_shape(result, what, shape_of(values_[carry.read]));
      if (result.dtype != values_[carry.read].dtype) throw GraphError(what + " has another dtype than what is carried");
      carry.written = value;
    }
    if (count < num_carries) throw GraphError("the loop has " + std::to_string(count) + " outputs and carries more");
    is_result_ = std::move(is_taken);
  }

  void check_while() const {
    if (!loop_->is_while) return;
    if (!loop_->entries.empty() || !loop_->stacked.empty())
      throw GraphError("a loop of unknown length has entries for each turn");
    if (loop_->carries.empty()) throw GraphError("a loop of unknown length carries nothing");
    const TensorView& first = values_[loop_->carries[0].read];
    check_view(first, "the first carry of a loop of unknown length", {.rank = 0, .dtypes = DType::kBool});
  }

  // Where everything lies: in scratch pointers first, then values.
  void place() {
    Loop& loop = *loop_;
    loop.num_values = values_.size();
    loop.scratch_bytes = aligned(static_cast<int64_t>((loop.num_values + loop.num_pointers + loop.most_further) * sizeof(void*)));
    for (size_t i = 0; i < values_.size(); ++i) {
      if (is_written_[i] && !is_result_[i]) loop.places[i] = take(loop.scratch_bytes, bytes_of(values_[i]));
    }
    for (Carry& carry : loop.carries) {
      for (int64_t& buffer : carry.buffers) buffer = take(loop.kept_bytes, carry.bytes);
    }
  }

  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  static int64_t take(int64_t& taken, int64_t bytes) {
    const int64_t begin = taken;
    taken += aligned(bytes);
    if (bytes > kMaxScratch || taken > kMaxScratch) {
      throw GraphError("the values of a loop take more than " + std::to_string(kMaxScratch) + " bytes");
    }
    return begin;
  }

  SpecReader reader_;
  const OpSpec& spec_;
  std::unique_ptr<Loop> loop_;
  std::vector<TensorView> values_;  // of the body
  std::vector<bool> is_written_;    // by a part
  std::vector<bool> is_result_;
};

}  // namespace

PreparedOp prepare_loop(const OpSpec& spec) { return LoopReader(spec).read(); }

}  // namespace aspen::cpu::ASPEN_TARGET
