// How a row program runs.
//
// Rows are taken a group at a time. The group is swept along its rows as often as reductions depend on each other: a stage that
// reads a reduction needs all of the row first. In softmax the maximum takes the first sweep, the sum of exponentials the
// second, and the division the third. A sweep goes plane by plane, a plane being as many elements as stay in cache, and
// computes all of its stages on each plane. Stages that are numbers, one a row, are computed between sweeps.
//
// The planes are chosen by how rows lie in memory. Short rows whose elements are adjacent fill a plane together ("whole"). Of
// longer ones, or of rows of several loops, a group is one row. Where neighbouring rows are adjacent, and neighbouring elements
// of a row are not, the columns of a plane are rows ("across").
#include "rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "block_draft.h"
#include "row_reductions.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// Elements that a stage computes at a time, and rows of a group. A group's rows are worked on together so that short rows cost
// little more an element than long ones.
constexpr int64_t kChunk = 8192;
constexpr int64_t kMaxGroup = 256;
constexpr int64_t kMinAcross = 16;  // elements of a cache line
static_assert(kMaxGroup % kLanes == 0);
constexpr int64_t kLaneBytes = 4;  // of what is kept between stages

// Where nothing is subtracted: a zero for each row of a group.
alignas(64) constexpr std::byte kNoShift[kMaxGroup * kLaneBytes] = {};

[[noreturn]] void refuse(const std::string& what) { throw GraphError("row program: " + what); }

// A stage's result lies in scratch memory or in the output.
void* writable(const void* data) { return const_cast<void*>(data); }

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// How many rows are worked on together.
int64_t rows_of_group(int64_t length, bool across) {
  if (across) return std::clamp(kChunk / length / kMinAcross * kMinAcross, kMinAcross, kMaxGroup);
  return std::clamp<int64_t>(kChunk / length, 1, kMaxGroup);
}

}  // namespace

// Leaves to the reduction what it can do while it reads: squares, and the differences that are squared.
void RowProgram::reduce_squares(Stage& stage, Draft& draft) const {
  const bool is_float_sum = stage.kind == static_cast<int>(Combination::kSum) && stage.dtype == DType::kF32;
  if (!is_float_sum || !take_square(draft)) return;
  stage.reduction = sum_of_squares();
  stage.shift = take_subtrahend(draft, [&](int reg) {
    const auto input = static_cast<size_t>(reg);
    return input >= num_inputs_ && stages_[input - num_inputs_].kind != kRow && dtypes_[input] == DType::kF32;
  });
}

int64_t RowNest::length() const {
  int64_t length = 1;
  for (int loop = 0; loop < depth; ++loop) length *= extents[loop];
  return length;
}

RowProgram::Stage RowProgram::read_stage(WordReader& words, bool is_last, DType output, std::span<const DType> further) {
  Stage stage;
  const int most = is_last ? kNumber : kNumber + kStored;
  stage.kind = static_cast<int>(words.integer(is_last ? kRow : 0, most, "the kind of a row program's stage"));
  if (stage.kind > kNumber) {
    stage.kind -= kStored;
    if (stage.kind < kRow) refuse("a stage of kind " + std::to_string(stage.kind + kStored) + " is stored; kinds 4 and 5 can be");
    stage.stored = num_stored_++;
    if (static_cast<size_t>(stage.stored) >= further.size()) refuse("it stores more stages than the op has outputs");
    output = further[static_cast<size_t>(stage.stored)];
  }
  stage.dtype = words.dtype("the dtype of a row program's stage");
  if (is_last || stage.stored >= 0 ? stage.dtype != output : stage.dtype != DType::kF32 && stage.dtype != DType::kI32) {
    refuse("stage " + std::to_string(stages_.size()) + " is " + std::string(name_of(stage.dtype)) +
           "; what is stored is as its output, and what is kept between stages is float32 or int32");
  }
  Draft draft = read_draft(words, dtypes_, stage.dtype);
  if (stage.kind < kRow) stage.reduction = row_reduction_of(static_cast<Combination>(stage.kind), stage.dtype);
  reduce_squares(stage, draft);
  stage.program = BlockProgram::of(std::move(draft), dtypes_, stage.dtype);
  return stage;
}

// Finds the sweep of a stage, which comes after those that it reads, and notes what is read.
void RowProgram::place_stage(Stage& stage, std::vector<bool>& is_read) {
  for (size_t reg = 0; reg < dtypes_.size(); ++reg) {
    if (!stage.program.reads(static_cast<int>(reg)) && stage.shift != static_cast<int>(reg)) continue;
    if (reg < num_inputs_) {
      if (stage.kind == kNumber) reads_once_[reg] = true;
      continue;
    }
    const Stage& source = stages_[reg - num_inputs_];
    is_read[reg - num_inputs_] = true;
    if (stage.kind == kNumber && source.kind == kRow) refuse("a number is computed from elements that are not reduced");
    // A reduction is complete when its sweep is; a number is computed before its sweep.
    stage.sweep = std::max(stage.sweep, source.sweep + (source.kind < kRow ? 1 : 0));
  }
}

RowProgram RowProgram::parse(WordReader& words, std::span<const DType> inputs, DType output, std::span<const DType> further) {
  RowProgram program;
  program.num_inputs_ = inputs.size();
  program.dtypes_.assign(inputs.begin(), inputs.end());
  program.reads_once_.resize(inputs.size());
  const int64_t num_stages = words.integer(1, BlockProgram::kMaxInputs, "a row program's number of stages");
  if (inputs.size() + static_cast<size_t>(num_stages) > BlockProgram::kMaxInputs) {
    refuse(std::to_string(inputs.size()) + " inputs and " + std::to_string(num_stages) + " stages are too many");
  }
  std::vector<bool> is_read;
  for (int64_t index = 0; index < num_stages; ++index) {
    const bool is_last = index + 1 == num_stages;
    Stage stage = program.read_stage(words, is_last, output, further);
    program.place_stage(stage, is_read);
    if (!is_last && stage.stored < 0) stage.place = stage.kind == kRow ? program.num_rows_++ : program.num_numbers_++;
    program.num_sweeps_ = std::max(program.num_sweeps_, stage.sweep + 1);
    program.block_bytes_ = std::max(program.block_bytes_, stage.program.scratch_bytes());
    program.dtypes_.push_back(stage.dtype);
    is_read.push_back(is_last || stage.stored >= 0);
    program.stages_.push_back(std::move(stage));
  }
  // So the result is in the last sweep, and may overwrite an input.
  const auto unread = std::ranges::find(is_read, false);
  if (unread != is_read.end()) refuse("stage " + std::to_string(unread - is_read.begin()) + " is not read");
  if (static_cast<size_t>(program.num_stored_) != further.size()) refuse("it stores fewer stages than the op has outputs");
  for (const Stage& stage : program.stages_) {
    if (stage.stored >= 0 && (stage.kind == kRow) != program.gives_rows()) refuse("its outputs are not of one shape");
  }
  return program;
}

// The parts of the scratch memory.
struct RowProgram::Scratch {
  Scratch(const RowProgram& program, int64_t length, bool across) {
    const auto take = [&](int64_t elements) {
      const int64_t begin = bytes;
      bytes += padded(elements * kLaneBytes);
      return begin;
    };
    numbers = take(program.num_numbers_ * kMaxGroup);
    totals = take(program.num_numbers_ * 2 * kMaxGroup);
    kept_bytes = padded(rows_of_group(length, across) * length * kLaneBytes);
    rows = bytes;
    bytes += program.num_rows_ * kept_bytes;
    chunk = take(kChunk);
    block = bytes;
    bytes += static_cast<int64_t>(program.block_bytes_);
  }

  // Offsets in bytes; a number and a total have room for kMaxGroup rows.
  int64_t numbers, totals, rows, kept_bytes, chunk, block;
  int64_t bytes = 0;
};

size_t RowProgram::scratch_bytes(int64_t length, bool across) const {
  return static_cast<size_t>(Scratch(*this, length, across).bytes);
}

// Rows that are worked on together.
struct RowProgram::Group {
  const RowNest& nest;
  const RowOperand* inputs;
  RowOperand out;
  void* const* further;
  int64_t first;  // row
  int64_t rows;
  bool across;
  bool whole;  // a plane holds whole rows
  const Scratch& parts;
  std::byte* scratch;
  // Of the inputs and the stages; made once for all groups.
  RowOperand* operands;
  Plane* planes;

  // Whether the planes of a sweep are added to totals: a reduction of whole rows has its numbers at once.
  bool keeps_totals(const Stage& stage) const { return stage.reduction != nullptr && !whole; }
  std::byte* totals(const Stage& stage) const { return scratch + parts.totals + stage.place * 2 * kMaxGroup * kLaneBytes; }
  int64_t num_totals() const { return across ? kMaxGroup : kLanes; }
  std::byte* block_scratch() const { return scratch + parts.block; }
};

void RowProgram::run(const RowNest& nest, const RowOperand* inputs, const RowOperand& out, int64_t rows, bool across,
                     std::byte* scratch, void* const* further) const noexcept {
  const int64_t length = nest.length();
  const bool whole = !across && nest.depth == 1 && length <= kChunk;
  const int64_t most = across || whole ? rows_of_group(length, across) : 1;
  const Scratch parts(*this, length, across);
  RowOperand operands[BlockProgram::kMaxInputs];
  Plane planes[BlockProgram::kMaxInputs];
  for (int64_t row = 0; row < rows; row += most) {
    run_group({nest, inputs, out, further, row, std::min(most, rows - row), across, whole, parts, scratch, operands, planes});
  }
}

void RowProgram::run_group(const Group& group) const noexcept {
  place_operands(group);
  for (int number = 0; number < num_sweeps_; ++number) {
    if (!begin_sweep(group, number)) continue;
    sweep(group, number);
    end_sweep(group, number);
  }
}

// Where the inputs and the results of stages lie for the group.
void RowProgram::place_operands(const Group& group) const noexcept {
  const RowNest& nest = group.nest;
  const auto first_row = [&](RowOperand operand, DType dtype) {
    operand.data = static_cast<const std::byte*>(operand.data) + group.first * operand.row_stride * size_of(dtype);
    return operand;
  };
  for (size_t i = 0; i < num_inputs_; ++i) group.operands[i] = first_row(group.inputs[i], dtypes_[i]);
  for (size_t i = 0; i < stages_.size(); ++i) {
    RowOperand& operand = group.operands[num_inputs_ + i];
    const Stage& stage = stages_[i];
    if (i + 1 == stages_.size()) {
      operand = first_row(group.out, stage.dtype);
    } else if (stage.stored >= 0) {
      operand = group.out;
      operand.data = group.further[stage.stored];
      operand = first_row(operand, stage.dtype);
    } else if (stage.kind == kRow) {
      operand.data = group.scratch + group.parts.rows + stage.place * group.parts.kept_bytes;
      operand.row_stride = group.across ? 1 : nest.length();
      int64_t stride = group.across ? group.rows : 1;
      for (int loop = 0; loop < nest.depth; stride *= nest.extents[loop++]) operand.strides[loop] = stride;
    } else {
      operand.data = group.scratch + group.parts.numbers + stage.place * kMaxGroup * kLaneBytes;
      operand.row_stride = 1;
    }
  }
}

// Computes the numbers that the sweep needs and begins its totals. Returns whether it has a stage along the rows.
bool RowProgram::begin_sweep(const Group& group, int number) const noexcept {
  bool walks = false;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    if (stage.sweep != number) continue;
    if (stage.kind == kNumber) {
      compute_number(group, i);
      continue;
    }
    walks = true;
    if (group.keeps_totals(stage)) stage.reduction->begin(group.totals(stage), group.num_totals());
  }
  return walks;
}

// A stage that is computed once a row: the group's rows are the columns of one plane.
void RowProgram::compute_number(const Group& group, size_t index) const noexcept {
  const size_t num_registers = num_inputs_ + index;
  for (size_t reg = 0; reg < num_registers; ++reg) {
    group.planes[reg] = {group.operands[reg].data, 0, group.operands[reg].row_stride};
  }
  const RowOperand& out = group.operands[num_registers];
  stages_[index].program.run(group.planes, writable(out.data), 0, out.row_stride, 1, group.rows, group.block_scratch());
}

// Makes numbers of the totals that the sweep has added up.
void RowProgram::end_sweep(const Group& group, int number) const noexcept {
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    if (stage.sweep != number || !group.keeps_totals(stage)) continue;
    void* const numbers = writable(group.operands[num_inputs_ + i].data);
    if (group.across) {
      std::memcpy(numbers, group.totals(stage), static_cast<size_t>(group.rows) * kLaneBytes);
    } else {
      stage.reduction->fold(group.totals(stage), numbers);
    }
  }
}

// How a sweep cuts the group into planes. What their rows and their columns walk is a loop of the nest, the group's rows, or
// nothing.
struct RowProgram::Walk {
  static constexpr int kRows = -1, kNothing = -2;

  const Group& group;
  int row_axis = group.across ? 0 : group.whole ? kRows : group.nest.depth > 1 ? 1 : kNothing;
  int col_axis = group.across ? kRows : 0;
  int64_t index[kMaxRank] = {};  // of the loops outside of planes

  int64_t extent(int axis) const { return axis == kNothing ? 1 : axis == kRows ? group.rows : group.nest.extents[axis]; }
  int64_t stride(const RowOperand& operand, int axis) const {
    return axis == kNothing ? 0 : axis == kRows ? operand.row_stride : operand.strides[axis];
  }

  // The plane of an operand that begins at `row` and `col`.
  Plane plane(const RowOperand& operand, DType dtype, int64_t row, int64_t col) const {
    const int64_t row_stride = stride(operand, row_axis), col_stride = stride(operand, col_axis);
    int64_t offset = row * row_stride + col * col_stride;
    for (int loop = 0; loop < group.nest.depth; ++loop) offset += index[loop] * operand.strides[loop];
    return {static_cast<const std::byte*>(operand.data) + offset * size_of(dtype), row_stride, col_stride};
  }

  // Moves the loops outside of planes on; false after the last step.
  bool next() {
    for (int loop = std::max(row_axis, col_axis) + 1; loop < group.nest.depth; ++loop) {
      if (++index[loop] < group.nest.extents[loop]) return true;
      index[loop] = 0;
    }
    return false;
  }
};

// Walks along the rows once, plane by plane, and computes the stages of the sweep on each plane.
void RowProgram::sweep(const Group& group, int number) const noexcept {
  Walk walk{group};
  const int64_t all_rows = walk.extent(walk.row_axis), all_cols = walk.extent(walk.col_axis);
  const int64_t plane_cols = std::min(all_cols, kChunk);
  const int64_t plane_rows = std::max<int64_t>(kChunk / plane_cols, 1);
  do {
    for (int64_t row = 0; row < all_rows; row += plane_rows) {
      for (int64_t col = 0; col < all_cols; col += plane_cols) {
        for (size_t reg = 0; reg < dtypes_.size(); ++reg) {
          group.planes[reg] = walk.plane(group.operands[reg], dtypes_[reg], row, col);
        }
        run_stages(group, number, std::min(plane_rows, all_rows - row), std::min(plane_cols, all_cols - col));
      }
    }
  } while (walk.next());
}

// The stages of a sweep on the group's planes, of so many rows and columns.
void RowProgram::run_stages(const Group& group, int number, int64_t rows, int64_t cols) const noexcept {
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    if (stage.sweep != number || stage.kind == kNumber) continue;
    if (stage.kind == kRow) {
      const Plane& to = group.planes[num_inputs_ + i];
      stage.program.run(group.planes, writable(to.data), to.row_stride, to.col_stride, rows, cols, group.block_scratch());
    } else {
      reduce_plane(group, i, rows, cols);
    }
  }
}

// What a stage computes on the planes, reduced.
void RowProgram::reduce_plane(const Group& group, size_t index, int64_t rows, int64_t cols) const noexcept {
  const Stage& stage = stages_[index];
  std::byte* const chunk = group.scratch + group.parts.chunk;
  Plane from = {chunk, cols, 1};
  if (stage.program.is_copy() && group.planes[stage.program.copied_input()].col_stride == 1) {
    from = group.planes[stage.program.copied_input()];
  } else {
    stage.program.run(group.planes, chunk, cols, 1, rows, cols, group.block_scratch());
  }
  const Plane shifts = stage.shift < 0 ? Plane{kNoShift, 0, 0} : group.planes[stage.shift];
  if (group.whole) {
    stage.reduction->each_row(from, rows, cols, shifts, writable(group.planes[num_inputs_ + index].data));
  } else if (group.across) {
    stage.reduction->add_columns(from, rows, cols, shifts, group.totals(stage), kMaxGroup);
  } else {
    stage.reduction->add_plane(from, rows, cols, shifts, group.totals(stage));
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
