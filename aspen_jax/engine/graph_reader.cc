// From the arrays of docs/graph_format.md to a Graph. Sizes are checked before they are multiplied, ids before they index.
#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "graph.h"
#include "tile_checks.h"
#include "utf8.h"
#include "wire.h"

namespace aspen {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kAlignment = 64;  // of values in the workspace
constexpr int32_t kNone = -1;

int64_t times(int64_t a, int64_t b, const std::string& what) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) throw GraphError(what + " has more elements than fit 64 bits");
  return product;
}

// Takes numbers off an array that is already in memory.
class Cursor {
 public:
  explicit Cursor(std::span<const int64_t> numbers) : numbers_(numbers) {}

  int64_t next(int64_t lo, int64_t hi, const std::string& where, const char* what) {
    if (numbers_.empty()) throw GraphError(where + ": the tile graph ends before its " + what);
    const int64_t number = numbers_.front();
    if (number < lo || number > hi) {
      throw GraphError(where + ": its " + what + " is " + std::to_string(number) + ", outside [" + std::to_string(lo) + ", " +
                       std::to_string(hi) + "]");
    }
    numbers_ = numbers_.subspan(1);
    return number;
  }

  void finish(const char* name) const {
    if (!numbers_.empty()) {
      throw GraphError(std::string("the ") + name + " of the tile graph hold " + std::to_string(numbers_.size()) +
                       " numbers too many");
    }
  }

 private:
  std::span<const int64_t> numbers_;
};

class GraphReader {
 public:
  explicit GraphReader(std::span<const std::byte> bytes) : wire_(bytes) {}

  Graph read() {
    const auto strings = wire_.array<uint8_t>("strings");
    const auto counts = wire_.array_of<int64_t>(8, "counts", 0);
    for (size_t i = 0; i < 6; ++i) id_limit(counts[i]);
    id_limit(counts[7]);
    num_operands_ = static_cast<int32_t>(counts[1]);
    num_results_ = static_cast<int32_t>(counts[2]);
    if (counts[1] + counts[2] >= kMaxId) throw GraphError("the tile graph has too many operands and results");
    graph_.workspace_bytes = counts[6];
    graph_.max_depth = static_cast<int32_t>(counts[7]);
    read_names(strings, counts[0], counts[4]);
    read_values(counts[3]);
    read_call();
    read_ops(counts[4]);
    read_inputs();
    read_params();
    // Fields may name further outputs, so all writers are known before the tiles only where none follow.
    if (wire_.version() < 2) check_writers();
    read_tiles(counts[5]);
    read_edges(counts[5]);
    if (wire_.version() >= 2) {
      read_fields();
      check_writers();
    }
    wire_.finish();
    check_workspace();
    check_tiles_cover_outputs(graph_);
    check_acyclic(graph_);
    return std::move(graph_);
  }

 private:
  static void id_limit(int64_t count) {
    if (count > kMaxId) throw GraphError("the tile graph announces " + std::to_string(count) + " of something: too many");
  }

  static size_t rows(int64_t count, int64_t width) { return static_cast<size_t>(count * width); }  // below 2^34

  std::string op_name(size_t op) const { return "op '" + graph_.op_names[op] + "'"; }

  void read_names(const std::vector<uint8_t>& strings, int64_t num_kernels, int64_t num_ops) {
    if (!is_utf8(strings)) throw GraphError("the names of the tile graph are no UTF-8 text");
    auto begin = strings.begin();
    while (begin != strings.end()) {
      const auto end = std::find(begin, strings.end(), 0);
      if (end == strings.end()) throw GraphError("the last name of the tile graph has no end");
      const bool kernel = static_cast<int64_t>(graph_.kernel_names.size()) < num_kernels;
      (kernel ? graph_.kernel_names : graph_.op_names).emplace_back(begin, end);
      begin = end + 1;
    }
    if (static_cast<int64_t>(graph_.kernel_names.size()) != num_kernels ||
        static_cast<int64_t>(graph_.op_names.size()) != num_ops) {
      throw GraphError("the tile graph has " + std::to_string(graph_.kernel_names.size() + graph_.op_names.size()) +
                       " names where " + std::to_string(num_kernels + num_ops) + " are needed");
    }
  }

  void read_values(int64_t count) {
    const auto numbers = wire_.array_of<int64_t>(rows(count, 4), "values");
    const auto shapes = wire_.array<int64_t>("value shapes", 0);
    Cursor row(numbers), shape(shapes);
    graph_.values.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      Value& value = graph_.values[i];
      const std::string where = "value " + std::to_string(i);
      value.buffer = static_cast<int32_t>(row.next(0, num_operands_ + num_results_, where, "buffer"));
      value.offset = row.next(0, kMaxInt64, where, "offset");
      value.dense.dtype = static_cast<DType>(row.next(0, kNumDTypes - 1, where, "dtype"));
      value.dense.rank = static_cast<int>(row.next(0, kMaxRank, where, "rank"));
      for (int d = 0; d < value.dense.rank; ++d) value.dense.shape[d] = shape.next(0, kMaxInt64, where, "dimension");
      // An empty tensor too must have strides that fit, so zeros do not excuse the other dimensions.
      int64_t stride = 1;
      for (int d = value.dense.rank - 1; d >= 0; --d) {
        value.dense.strides[d] = stride;
        stride = times(stride, std::max<int64_t>(1, value.dense.shape[d]), where);
      }
      const int64_t bytes = times(stride, size_of(value.dense.dtype), where);
      value.bytes = std::count(value.dense.shape, value.dense.shape + value.dense.rank, 0) ? 0 : bytes;
      if (value.buffer == num_operands_ + num_results_) check_inside(value, graph_.workspace_bytes, where, "the workspace");
    }
    shape.finish("value shapes");
  }

  static void check_inside(const Value& value, int64_t bytes, const std::string& where, const std::string& buffer) {
    if (value.offset % kAlignment != 0)
      throw GraphError(where + ": its offset " + std::to_string(value.offset) + " is no multiple of 64");
    if (value.offset > bytes || value.bytes > bytes - value.offset) {
      throw GraphError(where + ": its " + std::to_string(value.bytes) + " bytes at " + std::to_string(value.offset) +
                       " do not fit " + buffer + " of " + std::to_string(bytes) + " bytes");
    }
  }

  // The sizes of the call's buffers are those of the values that stand for them. Other values there have the same, or lie inside
  // an operand and have its dtype. A result may lie in an operand: the call may then be given one memory for both.
  void read_call() {
    const int64_t last_value = static_cast<int64_t>(graph_.values.size()) - 1;
    graph_.operands = wire_.array_of<int32_t>(num_operands_, "operands of the call", 0, last_value);
    graph_.results = wire_.array_of<int32_t>(num_results_, "results of the call", 0, last_value);
    result_in_.assign(static_cast<size_t>(num_operands_), kNone);
    std::vector<int64_t> buffer_bytes;
    for (const auto* ids : {&graph_.operands, &graph_.results}) {
      for (const int32_t id : *ids) {
        const Value& value = graph_.values[id];
        const auto buffer = static_cast<int32_t>(buffer_bytes.size());
        buffer_bytes.push_back(value.bytes);
        if (value.buffer == buffer) continue;
        if (buffer < num_operands_ || value.buffer >= num_operands_) {
          throw GraphError("value " + std::to_string(id) + " stands for buffer " + std::to_string(buffer) +
                           " of the call but lies in buffer " + std::to_string(value.buffer));
        }
        if (graph_.operands[value.buffer] == id || std::exchange(result_in_[value.buffer], buffer) != kNone) {
          throw GraphError("value " + std::to_string(id) + ", a result of the call, is operand " + std::to_string(value.buffer) +
                           " itself, or lies there beside another result");
        }
      }
    }
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      if (value.buffer == graph_.workspace()) continue;
      const std::string where = "value " + std::to_string(i);
      const bool is_operand = value.buffer < num_operands_;
      const int32_t there = is_operand ? graph_.operands[value.buffer] : graph_.results[value.buffer - num_operands_];
      if (is_operand && there != static_cast<int32_t>(i)) {
        check_inside(value, buffer_bytes[value.buffer], where, "operand " + std::to_string(value.buffer));
      } else {
        check_fills(value, buffer_bytes[value.buffer], where);
      }
      if (value.dense.dtype != graph_.values[there].dense.dtype) {
        throw GraphError(where + " has another dtype than buffer " + std::to_string(value.buffer) +
                         " of the call, in which it lies");
      }
    }
  }

  static void check_fills(const Value& value, int64_t bytes, const std::string& where) {
    if (value.offset == 0 && value.bytes == bytes) return;
    throw GraphError(where + " does not fill buffer " + std::to_string(value.buffer) + " of the call: " +
                     std::to_string(value.bytes) + " bytes at " + std::to_string(value.offset) + " of " + std::to_string(bytes));
  }

  // What is written where a result lies in an operand goes to the result: so it is right too where each has memory of its own.
  void move_to_result(int32_t id) {
    Value& value = graph_.values[id];
    if (value.buffer >= num_operands_ || result_in_[value.buffer] == kNone || graph_.operands[value.buffer] == id) return;
    check_fills(value, graph_.values[graph_.operands[value.buffer]].bytes, "value " + std::to_string(id));
    value.buffer = result_in_[value.buffer];
  }

  void read_ops(int64_t count) {
    const auto numbers = wire_.array_of<int64_t>(rows(count, 5), "ops");
    Cursor row(numbers);
    graph_.ops.resize(static_cast<size_t>(count));
    uint64_t num_inputs = 0, num_params = 0;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      Op& op = graph_.ops[i];
      const std::string where = op_name(i);
      op.kernel = static_cast<int32_t>(row.next(0, static_cast<int64_t>(graph_.kernel_names.size()) - 1, where, "kernel"));
      op.output = static_cast<int32_t>(row.next(0, static_cast<int64_t>(graph_.values.size()) - 1, where, "output"));
      op.first_input = static_cast<uint32_t>(num_inputs);
      op.first_param = static_cast<uint32_t>(num_params);
      op.num_inputs = static_cast<uint32_t>(row.next(0, kMaxId, where, "number of inputs"));
      op.num_params = static_cast<uint32_t>(row.next(0, kMaxId, where, "number of parameter words"));
      op.depth = static_cast<int32_t>(row.next(0, graph_.max_depth, where, "depth"));
      num_inputs += op.num_inputs;
      num_params += op.num_params;
      if (num_inputs > kMaxId || num_params > kMaxId) throw GraphError(where + ": the ops have too many inputs or parameters");
    }
    for (const int32_t id : graph_.results) move_to_result(id);
    for (const Op& op : graph_.ops) move_to_result(op.output);
  }

  void read_inputs() {
    const auto numbers = wire_.array<int64_t>("inputs");
    Cursor cursor(numbers);
    // Grows with the numbers read: the ops may announce more inputs than there are.
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      for (uint32_t k = 0; k < graph_.ops[i].num_inputs; ++k) {
        graph_.inputs.push_back(read_input(cursor, "input " + std::to_string(k) + " of " + op_name(i)));
        if (graph_.inputs.back().value == graph_.ops[i].output) throw GraphError(op_name(i) + " reads its own output");
      }
    }
    cursor.finish("inputs");
  }

  Input read_input(Cursor& cursor, const std::string& where) const {
    Input input;
    input.value = static_cast<int32_t>(cursor.next(0, static_cast<int64_t>(graph_.values.size()) - 1, where, "value"));
    const Value& value = graph_.values[input.value];
    const auto base_rank = static_cast<int>(cursor.next(0, kMaxRank, where, "rank of R"));
    input.view.dtype = value.dense.dtype;
    input.view.rank = static_cast<int>(cursor.next(0, kMaxRank, where, "rank"));

    int64_t base[kMaxRank] = {}, units[kMaxRank] = {}, starts[kMaxRank] = {};
    for (int j = 0; j < base_rank; ++j) base[j] = cursor.next(0, kMaxInt64, where, "dimension of R");
    const int64_t elements = dense_strides(base, base_rank, units, where);
    if (elements != value.bytes / size_of(value.dense.dtype)) {
      throw GraphError(where + ": R has " + std::to_string(elements) + " elements, its value has " +
                       std::to_string(value.bytes / size_of(value.dense.dtype)));
    }
    for (int j = 0; j < base_rank; ++j) starts[j] = cursor.next(0, base[j], where, "start");

    int64_t sources[kMaxRank] = {}, steps[kMaxRank] = {};
    bool walked[kMaxRank] = {}, empty = false;
    for (int d = 0; d < input.view.rank; ++d) {
      sources[d] = cursor.next(-1, base_rank - 1, where, "source");
      steps[d] = cursor.next(-kMaxInt64, kMaxInt64, where, "step");
      input.view.shape[d] = cursor.next(0, kMaxInt64, where, "extent");
      empty |= input.view.shape[d] == 0;
      if (sources[d] < 0) {
        if (steps[d] != 0) throw GraphError(where + ": a broadcast dimension has step " + std::to_string(steps[d]));
      } else if (std::exchange(walked[sources[d]], true)) {
        throw GraphError(where + ": two of its dimensions walk dimension " + std::to_string(sources[d]) + " of R");
      }
    }
    input.offset = value.offset;
    if (empty) return input;  // reads nothing, so any start will do; strides stay 0

    int64_t first = 0;
    for (int j = 0; j < base_rank; ++j) {
      if (starts[j] >= base[j]) throw GraphError(where + ": start " + std::to_string(starts[j]) + " lies outside R");
      first += starts[j] * units[j];
    }
    for (int d = 0; d < input.view.rank; ++d) {
      const int64_t extent = input.view.shape[d];
      if (sources[d] < 0 || extent == 1) continue;
      int64_t last;
      if (__builtin_mul_overflow(steps[d], extent - 1, &last) || __builtin_add_overflow(last, starts[sources[d]], &last) ||
          last < 0 || last >= base[sources[d]]) {
        throw GraphError(where + ": dimension " + std::to_string(d) + " walks out of R");
      }
      input.view.strides[d] = steps[d] * units[sources[d]];
    }
    // Both ends of every walk lie inside R, so every element lies inside the value and these products inside its size.
    input.offset += first * size_of(value.dense.dtype);
    return input;
  }

  static int64_t dense_strides(const int64_t* shape, int rank, int64_t* strides, const std::string& where) {
    int64_t stride = 1;
    for (int j = rank - 1; j >= 0; --j) {
      strides[j] = stride;
      stride = times(stride, shape[j], where);
    }
    return stride;
  }

  void read_params() {
    size_t count = 0;
    for (const Op& op : graph_.ops) count += op.num_params;
    graph_.params = wire_.array_of<int64_t>(count, "parameter words");
  }

  // Each value has one writer at most, operands none and results one, or several that each read what the one before wrote there;
  // and nothing is read that nobody writes.
  void check_writers() const {
    std::vector<int32_t> value_writer(graph_.values.size(), kNone), buffer_writer(graph_.workspace(), kNone);
    const auto write = [&](size_t i, int32_t output) {
      const int32_t buffer = graph_.values[output].buffer;
      if (buffer < num_operands_) throw GraphError(op_name(i) + " writes operand " + std::to_string(buffer) + " of the call");
      const bool in_result = buffer < graph_.workspace();
      const auto reads_there = [&](const Input& input) { return graph_.values[input.value].buffer == buffer; };
      const bool rewrites = in_result && std::ranges::any_of(graph_.inputs_of(graph_.ops[i]), reads_there);
      const int32_t other = std::max(value_writer[output], in_result && !rewrites ? buffer_writer[buffer] : kNone);
      if (other != kNone) throw GraphError(op_name(i) + " and " + op_name(other) + " write the same value");
      value_writer[output] = static_cast<int32_t>(i);
      if (in_result) buffer_writer[buffer] = static_cast<int32_t>(i);
    };
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      write(i, graph_.ops[i].output);
      for (const int32_t output : graph_.further_of(graph_.ops[i])) write(i, output);
    }
    for (size_t buffer = num_operands_; buffer < buffer_writer.size(); ++buffer) {
      if (buffer_writer[buffer] == kNone) {
        throw GraphError("no op writes result " + std::to_string(buffer - num_operands_) + " of the call");
      }
    }
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      for (const Input& input : graph_.inputs_of(graph_.ops[i])) {
        if (value_writer[input.value] == static_cast<int32_t>(i)) throw GraphError(op_name(i) + " reads its own output");
        if (value_writer[input.value] == kNone && graph_.values[input.value].buffer >= num_operands_) {
          throw GraphError(op_name(i) + " reads value " + std::to_string(input.value) + ", which no op writes");
        }
      }
    }
  }

  // A run takes all of the workspace, so none is believed that its ops do not write.
  void check_workspace() const {
    int64_t reach = 0;
    const auto extend = [&](int32_t id) {
      const Value& value = graph_.values[id];
      if (value.buffer == graph_.workspace()) reach = std::max(reach, value.offset + value.bytes);
    };
    for (const Op& op : graph_.ops) extend(op.output);
    for (const int32_t id : graph_.further) extend(id);
    // What is left behind the last value fills its last 64 bytes.
    if (graph_.workspace_bytes - reach >= kAlignment) {
      throw GraphError("the tile graph has a workspace of " + std::to_string(graph_.workspace_bytes) +
                       " bytes, of which its ops write the first " + std::to_string(reach) +
                       "; save it again with this version of aspen_jax");
    }
  }

  void read_tiles(int64_t count) {
    const auto num_tiles = static_cast<size_t>(count);
    graph_.tile_ops = wire_.array_of<int32_t>(num_tiles, "tile ops", 0, static_cast<int64_t>(graph_.ops.size()) - 1);
    graph_.boxes = wire_.array<int32_t>("tile boxes", 0);
    graph_.first_box.resize(num_tiles + 1);
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      const TensorView& output = graph_.values[graph_.ops[graph_.tile_ops[tile]].output].dense;
      const size_t first = graph_.first_box[tile];
      const size_t end = graph_.first_box[tile + 1] = first + 2 * static_cast<size_t>(output.rank);
      if (end > graph_.boxes.size()) throw GraphError("the tile graph ends before the box of tile " + std::to_string(tile));
      const int32_t* lo = graph_.boxes.data() + first;
      const int32_t* hi = lo + output.rank;
      for (int d = 0; d < output.rank; ++d) {
        if (lo[d] >= hi[d] || hi[d] > output.shape[d]) {
          throw GraphError("tile " + std::to_string(tile) + " of " + op_name(graph_.tile_ops[tile]) + " covers [" +
                           std::to_string(lo[d]) + ", " + std::to_string(hi[d]) + ") of dimension " + std::to_string(d) +
                           ", which has " + std::to_string(output.shape[d]) + " elements");
        }
      }
    }
    if (graph_.first_box.back() != graph_.boxes.size()) throw GraphError("the tile boxes hold more numbers than the tiles need");
  }

  void read_edges(int64_t count) {
    const auto num_tiles = static_cast<size_t>(count);
    const auto child_counts = wire_.array_of<int32_t>(num_tiles, "child counts", 0);
    graph_.children = wire_.array<int32_t>("children", 0, count - 1);
    graph_.first_child.resize(num_tiles + 1);
    uint64_t sum = 0;
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      graph_.first_child[tile] = static_cast<uint32_t>(sum);
      sum += static_cast<uint64_t>(child_counts[tile]);
      if (sum > graph_.children.size()) break;
    }
    if (sum != graph_.children.size() || sum > std::numeric_limits<uint32_t>::max()) {
      throw GraphError("the child counts do not add up to the " + std::to_string(graph_.children.size()) + " children");
    }
    graph_.first_child.back() = static_cast<uint32_t>(sum);
    graph_.parents.resize(num_tiles);
    for (const int32_t child : graph_.children) ++graph_.parents[child];
    graph_.costs = wire_.array_of<int64_t>(num_tiles, "costs", 0);
  }

  // The engine may leave out those that it does not know and whose names do not begin with '!'.
  void read_fields() {
    const auto texts = wire_.array<uint8_t>("field names");
    std::set<std::string> known;
    for (const std::string& name : split(texts, "the names of the tile graph's fields")) {
      if (!known.insert(name).second) throw GraphError("two fields of the tile graph are called '" + name + "'");
      if (name == "!outputs") {
        read_further();
        continue;
      }
      if (name.front() == '!') {
        throw GraphError("the tile graph needs its field '" + name +
                         "', which this build does not know; run it by the aspen_jax that wrote it, or a newer one");
      }
      if (name == "run_key") {
        graph_.run_key = wire_.array_of<int64_t>(1, "run_key", -kMostRunKey, kMostRunKey).front();
      } else if (name == "input_names") {
        graph_.input_names = read_value_names("the names of the tile graph's inputs", graph_.operands.size());
      } else if (name == "result_names") {
        graph_.result_names = read_value_names("the names of the tile graph's results", graph_.results.size());
      } else {
        wire_.array<int64_t>("numbers of a field");
      }
    }
  }

  // Rows (op, value) in the order of the ops: outputs beside the first. Their extents are those of the first or whole parts of
  // them, and a tile's box of them is that of the first by the same parts. Others have shapes of their own: one tile writes them.
  void read_further() {
    const auto numbers = wire_.array<int64_t>("further outputs", 0);
    Cursor row(numbers);
    int64_t last = 0;
    for (size_t left = numbers.size(); left > 0; left -= std::min<size_t>(left, 2)) {
      const std::string where = "further output " + std::to_string(graph_.further.size());
      last = row.next(last, static_cast<int64_t>(graph_.ops.size()) - 1, where, "op");
      Op& op = graph_.ops[static_cast<size_t>(last)];
      if (op.num_further++ == 0) op.first_further = static_cast<uint32_t>(graph_.further.size());
      graph_.further.push_back(static_cast<int32_t>(row.next(0, static_cast<int64_t>(graph_.values.size()) - 1, where, "value")));
      move_to_result(graph_.further.back());
      const TensorView& first = graph_.values[op.output].dense;
      const TensorView& view = graph_.values[graph_.further.back()].dense;
      if (!is_whole_part(view, first) && std::ranges::count(graph_.tile_ops, static_cast<int32_t>(last)) != 1) {
        throw GraphError(where + ", of " + op_name(static_cast<size_t>(last)) +
                         ", has a shape that is no whole part of that of the op's first output, which more or less than one tile "
                         "writes");
      }
    }
  }

  std::vector<std::string> read_value_names(const std::string& what, size_t most) {
    std::vector<std::string> names = split(wire_.array<uint8_t>(what.c_str()), what);
    if (names.size() > most) throw GraphError(what + " are " + std::to_string(names.size()) + " for " + std::to_string(most));
    if (std::set<std::string>(names.begin(), names.end()).size() != names.size())
      throw GraphError(what + " are not all different");
    return names;
  }

  // Texts that are not empty, each ended by a zero byte.
  static std::vector<std::string> split(const std::vector<uint8_t>& texts, const std::string& what) {
    if (!is_utf8(texts)) throw GraphError(what + " are no UTF-8 text");
    std::vector<std::string> names;
    for (auto begin = texts.begin(); begin != texts.end();) {
      const auto end = std::find(begin, texts.end(), 0);
      if (end == begin || end == texts.end()) throw GraphError(what + ": one is empty or has no end");
      names.emplace_back(begin, end);
      begin = end + 1;
    }
    return names;
  }

  Wire wire_;
  Graph graph_;
  int32_t num_operands_ = 0;
  int32_t num_results_ = 0;
  std::vector<int32_t> result_in_;  // for each operand the buffer of the result that lies in it, or kNone
};

}  // namespace

Graph parse_graph(std::span<const std::byte> bytes) { return GraphReader(bytes).read(); }

}  // namespace aspen
