// The epilogue of an op: the element-wise program that turns a kernel's result into the op's output, block by block, while the
// block is still in registers or in the L1 cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "block.h"
#include "finish.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

struct Link;  // block_draft.h

class Epilogue {
 public:
  // Reads the tail of an op's words ("0", or "1" and a block program) to their end. Inputs from `num_main` on are the
  // epilogue's and must have the output's shape (there must be at least `num_main`); `result` is the dtype of the kernel's own
  // result (register 0), of 32 bits if it is a float. A float result is stored as a float of any dtype. Throws GraphError.
  static Epilogue parse(SpecReader& reader, size_t num_main, DType result);

  // Whether there is no program, and the kernel's result is the output.
  bool empty() const { return empty_ && output_ == result_; }

  // Whether the kernel's result, before the epilogue, may be kept in the output itself: its elements have the same size and lie
  // side by side along the last axis.
  bool fits_output() const { return fits_output_; }

  // The element of the output at coordinate `at`.
  std::byte* output_at(const TileArgs& args, const int64_t* at) const noexcept;

  // What `apply` and `complete` need; a multiple of 64.
  size_t scratch_bytes() const { return empty_ ? 0 : std::max(program_.scratch_bytes(), rest_.scratch_bytes()); }

  // Whether a kernel may store its result in the output itself once `finish` has been done on it in registers; if that does not
  // complete it, `complete` has to follow.
  bool begins_in_registers() const { return empty() || !links_.empty(); }

  // What is done in registers to a block whose first element is at output coordinate `at`, with rows along `row_axis`.
  void finish(const TileArgs& args, const int64_t* at, int row_axis, Finish& finish) const noexcept;

  // The rest of the epilogue on such a block, in the output, or on what `acc` holds of it as `apply` describes it.
  void complete(const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols,
                std::byte* scratch) const noexcept;
  void complete(const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols, const void* acc,
                int64_t acc_row_stride, std::byte* scratch) const noexcept {
    run(rest_, args, at, row_axis, rows, cols, acc, acc_row_stride, scratch);
  }

  // Whether rows that walk `axis` may run on past its last index, to index 0 of `axis` and the next index of `axis - 1`,
  // because the output and all extra inputs are laid out so (dense tensors and per-channel vectors are).
  bool runs_on(int axis) const { return runs_on_[axis]; }

  // Finishes a block of rows x cols elements of the output: the first at output coordinate `at` (output's rank entries), rows
  // along output axis `row_axis`, columns along the last axis. Where `row_axis` is the last axis (or the output is a scalar,
  // row_axis -1), rows must be 1. `acc` holds the kernel's result, its columns adjacent and its rows `acc_row_stride` elements
  // apart; it may be the output block itself if `fits_output()`. With no program, converts or copies
  // `acc` to the output where they differ.
  // `scratch` is 64-byte aligned and holds `scratch_bytes()`.
  void apply(const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols, const void* acc,
             int64_t acc_row_stride, std::byte* scratch) const noexcept;

 private:
  struct Extra {
    DType dtype;
    int64_t strides[kMaxRank];
  };

  bool empty_ = true;
  bool fits_output_ = false;
  bool runs_on_[kMaxRank] = {};
  int rank_ = 0;
  size_t num_main_ = 0;
  DType result_ = DType::kF32;
  DType output_ = DType::kF32;
  int64_t out_strides_[kMaxRank] = {};
  std::vector<Extra> extra_;
  // Input `index` of the op, or a constant.
  struct Operand {
    Finish::Kind kind;
    int extra;     // -1: the constant
    int constant;  // among `splats_`
  };
  // A vector of equal lanes.
  struct Splat {
    alignas(kVectorBytes) float lanes[kLanes];
  };

  // The steps of `parse`.
  void read_views(std::span<const TensorView> extra, const TensorView& output);
  void read_program(SpecReader& reader);
  void add_link(const Link& link);

  const std::byte* extra_at(const TileArgs& args, size_t extra, const int64_t* at) const noexcept;
  void run(const BlockProgram& program, const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols,
           const void* acc, int64_t acc_row_stride, std::byte* scratch) const noexcept;

  BlockProgram program_;
  std::vector<Operand> links_;  // what of the program can be done in registers,
  std::vector<Splat> splats_;
  bool has_rest_ = false;
  BlockProgram rest_;  // and what then remains
};

}  // namespace aspen::cpu::ASPEN_TARGET
