// Block programs: element-wise code, run one block of rows x columns at a time so that intermediates stay in the L1 cache.
//
// A program is the body of a `block` op and the epilogue of every other op (epilogue.h). The encoding is described in
// docs/graph_format.md, "Block program words"; the instructions are listed in block_ops.inc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// One operand of a block: element (row, col) is at data + row * row_stride + col * col_stride, counted in elements.
// Blocks whose columns are adjacent (col_stride 1) or equal (0) are read in place; any other stride is gathered first.
struct Plane {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};

// One step of a program on a block: out = function(in...), vector by vector. Vector k of row r of an argument is at
// data + r * row_stride + k * step, where step is kLanes, or 0 for an argument that is equal along the row.
struct StepBlock {
  struct Source {
    const int32_t* data;
    int64_t row_stride;
    int64_t step;
  };
  int32_t* out;
  int64_t out_row_stride;
  int64_t rows;
  int64_t cols;
  Source in[4];
};

struct Draft;  // block_draft.h

class BlockProgram {
 public:
  static constexpr int kMaxInputs = 64;
  static constexpr int kMaxOutputs = 64;

  // Reads and checks a program over inputs of these dtypes. `further` are the dtypes of outputs beside the first. Throws
  // GraphError.
  static BlockProgram parse(WordReader& words, std::span<const DType> inputs, DType output, std::span<const DType> further = {});

  // A program that has been read, and not been fused.
  static BlockProgram of(Draft draft, std::span<const DType> inputs, DType output, std::span<const DType> further = {});

  // What `run` needs; a multiple of 64.
  size_t scratch_bytes() const { return static_cast<size_t>(scratch_elements_) * 4; }

  // Whether the program only hands input `copied_input()` through, whose dtype is then the output's (any dtype at all).
  bool is_copy() const { return copied_input_ >= 0; }
  int copied_input() const { return copied_input_; }

  // Whether the result depends on this input.
  bool reads(int input) const {
    return std::ranges::any_of(inputs_, [input](const Input& read) { return read.index == input; });
  }

  // Computes rows x cols elements. There is one plane for each input. `out` may be exactly one of the planes (same address,
  // strides and size of element) and must not overlap any in another way. `scratch` is 64-byte aligned.
  void run(const Plane* inputs, void* out, int64_t out_row_stride, int64_t out_col_stride, int64_t rows, int64_t cols,
           std::byte* scratch) const noexcept {
    run(inputs, &out, out_row_stride, out_col_stride, rows, cols, scratch);
  }

  // Runs a program of several outputs, all of these strides. None may overlap a plane.
  void run(const Plane* inputs, void* const* outs, int64_t out_row_stride, int64_t out_col_stride, int64_t rows, int64_t cols,
           std::byte* scratch) const noexcept;

 private:
  static constexpr int64_t kMaxBlock = 2048;  // elements of a block

  struct Operand {
    enum Kind : uint8_t { kInput, kConstant, kSlot, kResult } kind = kSlot;  // kResult: what a Store stores
    int index = 0;
  };
  struct Step {
    void (*function)(const StepBlock&) noexcept;
    int num_args;
    Operand args[4];
    int out_slot;
  };
  // A result is stored when its step has run: its slot may then be another's. Where the output has lanes of its own, the step
  // writes there instead.
  struct Store {
    size_t step;  // behind all steps where the result is an input or a constant
    Operand source;
    int output;
    DType dtype;
  };
  struct Input {
    int index;  // among the planes
    DType dtype;
  };
  struct Constant {
    alignas(kVectorBytes) int32_t lanes[kLanes];
  };

  void read_results_where_stored();
  static int64_t buffered(const Input& input, const Plane& plane, int64_t width);
  static StepBlock::Source load_input(const Input& input, const Plane& plane, int32_t* buffer, int64_t row, int64_t col,
                                      int64_t rows, int64_t cols) noexcept;

  std::vector<Input> inputs_;  // those that are read
  std::vector<Constant> constants_;
  std::vector<Step> steps_;
  std::vector<Store> stores_;   // in the order of their steps
  DType output_ = DType::kF32;  // the first
  int num_slots_ = 0;
  int64_t max_columns_ = 0;  // so many columns of a row fit the scratch memory, whatever is gathered
  int64_t scratch_elements_ = 0;
  int copied_input_ = -1;
};

}  // namespace aspen::cpu::ASPEN_TARGET
