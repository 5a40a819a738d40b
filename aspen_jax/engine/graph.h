// The dataflow graph of tiles as plain arrays, after every byte of it has been checked (docs/graph_format.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernel.h"

namespace aspen {

// A dense row-major tensor inside a buffer of the call.
struct Value {
  int32_t buffer = 0;
  int64_t offset = 0;  // in bytes, from the start of the buffer
  int64_t bytes = 0;
  TensorView dense;  // dtype, shape and row-major strides
};

// What an op reads: a view of a value. Element 0 of the view lies `offset` bytes into the buffer.
struct Input {
  int32_t value = 0;
  int64_t offset = 0;
  TensorView view;
};

struct Op {
  int32_t kernel = 0;
  int32_t output = 0;
  uint32_t first_input = 0;
  uint32_t num_inputs = 0;
  uint32_t first_param = 0;
  uint32_t num_params = 0;
  int32_t depth = 0;
  uint32_t first_further = 0;  // outputs beside the first: of whole parts of its extents, or written by one tile
  uint32_t num_further = 0;
};

// 31 years, so that arrival and run key add up to what int64 holds.
inline constexpr int64_t kMostRunKey = 1'000'000'000'000'000'000;

// Buffers are numbered operands first, then results, then the workspace. Only `parse_graph` makes one, and what it returns
// keeps every promise of the format; nothing after it checks again. No value that is written lies in an operand: where the format
// says so, the value lies in the result that may share the operand's memory.
struct Graph {
  std::vector<std::string> kernel_names;
  std::vector<std::string> op_names;
  int32_t max_depth = 0;
  int64_t workspace_bytes = 0;
  int64_t run_key = 0;  // nanoseconds from a run's arrival until it is due (run_order.h)

  std::vector<Value> values;
  std::vector<int32_t> operands;  // value of each operand of the call
  std::vector<int32_t> results;   // value of each result of the call
  std::vector<Op> ops;
  std::vector<Input> inputs;
  std::vector<int64_t> params;
  std::vector<int32_t> further;  // the ops' outputs beside the first, one after the other

  std::vector<int32_t> tile_ops;
  std::vector<int32_t> boxes;         // for each tile lo, then hi, each of the rank of its op's output
  std::vector<size_t> first_box;      // where a tile's box begins in `boxes`; num_tiles + 1 entries
  std::vector<int32_t> children;      // CSR
  std::vector<uint32_t> first_child;  // num_tiles + 1 entries
  std::vector<uint32_t> parents;      // how often a tile occurs among the children
  std::vector<int64_t> costs;         // estimated nanoseconds

  // Names of the inputs, which are the first operands, and of all results; empty where the graph has none. For people and the C
  // library: no run looks at them.
  std::vector<std::string> input_names;
  std::vector<std::string> result_names;

  size_t num_tiles() const { return tile_ops.size(); }
  int32_t workspace() const { return static_cast<int32_t>(operands.size() + results.size()); }
  std::span<const Input> inputs_of(const Op& op) const { return std::span(inputs).subspan(op.first_input, op.num_inputs); }
  std::span<const int32_t> further_of(const Op& op) const { return std::span(further).subspan(op.first_further, op.num_further); }
  std::span<const int64_t> params_of(const Op& op) const { return std::span(params).subspan(op.first_param, op.num_params); }
  std::span<const int32_t> box_of(size_t tile) const {
    return std::span(boxes).subspan(first_box[tile], first_box[tile + 1] - first_box[tile]);
  }
  std::span<const int32_t> children_of(size_t tile) const {
    return std::span(children).subspan(first_child[tile], first_child[tile + 1] - first_child[tile]);
  }
};

// Whether an op's further output has whole parts of the extents of its first, so that a tile writes the same parts of its box.
inline bool is_whole_part(const TensorView& further, const TensorView& first) {
  const auto is_part = [](int64_t extent, int64_t of) { return extent > 0 ? of > 0 && of % extent == 0 : of == extent; };
  return std::ranges::equal(std::span(further.shape, further.rank), std::span(first.shape, first.rank), is_part);
}

// Reads and checks a graph. Throws GraphError with what is wrong and where; std::bad_alloc only where the bytes given justify
// the memory asked for.
Graph parse_graph(std::span<const std::byte> bytes);

}  // namespace aspen
