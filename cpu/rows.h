// Row programs: what is computed along rows, each of which is reduced on the way (softmax, layer norm, logsumexp, ...), run a few
// rows at a time so that intermediates stay in cache.
//
// A row program is a list of stages. A stage is a block program over the inputs and the results of earlier stages, and what
// becomes of it: it is reduced along the row to a number, kept for each element of the row, or itself computed once a row, from
// numbers. The last stage is the result; others may be stored beside it. The encoding is described in docs/graph_format.md, "Row
// program words".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block.h"

namespace aspen::cpu::ASPEN_TARGET {

// The elements of one row: a nest of loops, innermost first. There is at least one loop, and each has an iteration.
struct RowNest {
  int depth = 1;
  int64_t extents[kMaxRank] = {};

  int64_t length() const;
};

// What rows are read from or written to. Element 0 of row r is at data + r * row_stride; the loops of a RowNest walk by
// `strides`. All are counted in elements.
struct RowOperand {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t strides[kMaxRank] = {};
};

struct RowReduction;  // row_reductions.h

class RowProgram {
 public:
  // Rows longer than this are refused: each worker needs scratch memory for them.
  static constexpr int64_t kMaxLength = int64_t{1} << 24;

  // Reads and checks a program over inputs of these dtypes. `further` are the dtypes of outputs beside the first. Throws
  // GraphError.
  static RowProgram parse(WordReader& words, std::span<const DType> inputs, DType output, std::span<const DType> further = {});

  // Whether the result has a value for each element of a row, not one for each row.
  bool gives_rows() const { return stages_.back().kind == kRow; }

  // Whether stages that are computed once a row read the input: all of its `strides` must then be 0.
  bool reads_once(size_t input) const { return reads_once_[input]; }

  // What `run` needs for rows of this length; a multiple of 64. `across`: as `run`.
  size_t scratch_bytes(int64_t length, bool across) const;

  // Computes `rows` rows. There is one operand for each input. If the result has one value for each row, `out.strides` is not
  // used. `out` may be exactly one of the inputs, of elements of 4 bytes, and must not overlap any in another way. `across` says
  // that neighbouring rows are adjacent in memory where neighbouring elements of a row are not, so that vectors are best taken
  // across rows. `further` is where the outputs beside the first begin, which lie as that does and overlap no input. `scratch` is
  // 64-byte aligned.
  void run(const RowNest& nest, const RowOperand* inputs, const RowOperand& out, int64_t rows, bool across, std::byte* scratch,
           void* const* further = nullptr) const noexcept;

 private:
  enum Kind : int { kRow = 4, kNumber = 5 };  // smaller: a Combination
  static constexpr int kStored = 8;           // added to the kind of a stage that is stored too
  struct Stage {
    int kind;
    DType dtype;
    BlockProgram program;
    const RowReduction* reduction = nullptr;
    int shift = -1;   // the register of the number that the reduction subtracts from what it squares
    int sweep = 0;    // the walk along the row in which it is computed; a number: the walk before which
    int place = 0;    // among the kept rows, or among the numbers
    int stored = -1;  // among the outputs beside the first, where it lies instead
  };
  struct Scratch;
  struct Group;
  struct Walk;

  // The steps of `parse`.
  Stage read_stage(WordReader& words, bool is_last, DType output, std::span<const DType> further);
  void reduce_squares(Stage& stage, Draft& draft) const;
  void place_stage(Stage& stage, std::vector<bool>& is_read);

  // The steps of `run`.
  void run_group(const Group& group) const noexcept;
  void place_operands(const Group& group) const noexcept;
  bool begin_sweep(const Group& group, int number) const noexcept;
  void compute_number(const Group& group, size_t index) const noexcept;
  void sweep(const Group& group, int number) const noexcept;
  void run_stages(const Group& group, int number, int64_t rows, int64_t cols) const noexcept;
  void reduce_plane(const Group& group, size_t index, int64_t rows, int64_t cols) const noexcept;
  void end_sweep(const Group& group, int number) const noexcept;

  size_t num_inputs_ = 0;
  std::vector<DType> dtypes_;  // of the inputs, then of the stages' results
  std::vector<bool> reads_once_;
  std::vector<Stage> stages_;
  int num_sweeps_ = 0;
  int num_rows_ = 0;     // kept
  int num_numbers_ = 0;  // kept
  int num_stored_ = 0;
  size_t block_bytes_ = 0;
};

}  // namespace aspen::cpu::ASPEN_TARGET
