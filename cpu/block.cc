#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "block_draft.h"
#include "block_steps.h"
#include "planes.h"

namespace aspen::cpu::ASPEN_TARGET {

BlockProgram BlockProgram::parse(WordReader& words, std::span<const DType> inputs, DType output, std::span<const DType> further) {
  return of(read_draft(words, inputs, output, further), inputs, output, further);
}

BlockProgram BlockProgram::of(Draft draft, std::span<const DType> inputs, DType output, std::span<const DType> further) {
  const bool is_copy = draft.is_copy(inputs, output);
  if (!is_copy) fuse(draft);
  BlockProgram program;
  program.output_ = output;
  if (is_copy) {
    program.copied_input_ = draft.result;
    program.inputs_.push_back({draft.result, output});
    return program;
  }

  // Registers get the slots of registers that are no longer needed.
  const int num_registers = static_cast<int>(draft.registers.size());
  std::vector<int> last_use(num_registers, -1);
  for (int reg = draft.first_instruction(); reg < num_registers; ++reg) {
    if (draft.registers[reg].uses == 0) continue;
    for (int i = 0; i < draft.num_args(reg); ++i) last_use[draft.registers[reg].args[i]] = reg;
  }
  const auto is_unread = [&, first_use = last_use](int reg) { return first_use[reg] < 0; };
  std::vector<int> results = {draft.result};
  results.insert(results.end(), draft.further.begin(), draft.further.end());
  std::vector<size_t> step_of(num_registers);
  std::vector<Operand> operands(num_registers);
  for (int reg = 0; reg < draft.first_instruction(); ++reg) {
    if (draft.registers[reg].uses == 0) continue;
    if (draft.is_input(reg)) {
      operands[reg] = {Operand::kInput, static_cast<int>(program.inputs_.size())};
      program.inputs_.push_back({reg, inputs[reg]});
    } else {
      operands[reg] = {Operand::kConstant, static_cast<int>(program.constants_.size())};
      std::ranges::fill(program.constants_.emplace_back().lanes, draft.constants[reg - draft.num_inputs]);
    }
  }
  std::vector<int> free_slots;
  for (int reg = draft.first_instruction(); reg < num_registers; ++reg) {
    if (draft.registers[reg].uses == 0) continue;
    const Instruction& instruction = kInstructions[draft.registers[reg].opcode];
    Step step = {instruction.function, instruction.num_args, {}, 0};
    for (int i = 0; i < instruction.num_args; ++i) {
      const int arg = draft.registers[reg].args[i];
      step.args[i] = operands[arg];
      // A step reads each vector before it writes it, so its result may take the place of an argument.
      if (operands[arg].kind == Operand::kSlot && last_use[arg] == reg) {
        free_slots.push_back(operands[arg].index);
        last_use[arg] = -1;
      }
    }
    if (free_slots.empty()) free_slots.push_back(program.num_slots_++);
    step.out_slot = free_slots.back();
    free_slots.pop_back();
    operands[reg] = {Operand::kSlot, step.out_slot};
    step_of[reg] = program.steps_.size();
    program.steps_.push_back(step);
    if (is_unread(reg)) free_slots.push_back(step.out_slot);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const int reg = results[i];
    const size_t step = reg >= draft.first_instruction() ? step_of[reg] : program.steps_.size();
    program.stores_.push_back({step, operands[reg], static_cast<int>(i), i == 0 ? output : further[i - 1]});
  }
  std::ranges::stable_sort(program.stores_, {}, &Store::step);
  program.read_results_where_stored();

  // The slots and the gathered inputs of one block should together stay in the L1 cache beside what is streamed through it.
  constexpr int64_t kCacheBytes = 24 * 1024;
  const auto buffers = static_cast<int64_t>(program.num_slots_ + program.inputs_.size());
  program.max_columns_ = std::clamp<int64_t>(kCacheBytes / 4 / std::max<int64_t>(buffers, 1) / 64 * 64, 256, kMaxBlock);
  program.scratch_elements_ = buffers * program.max_columns_;
  return program;
}

// What reads a result's slot reads the output instead, if the step may write there; a second output of one result is a copy.
void BlockProgram::read_results_where_stored() {
  for (size_t i = 0; i < stores_.size(); ++i) {
    const size_t first_step = stores_[i].step;
    if (stores_[i].source.kind != Operand::kSlot) continue;
    const int slot = stores_[i].source.index;
    const Operand result = {Operand::kResult, static_cast<int>(i)};
    for (size_t number = first_step + 1; number < steps_.size(); ++number) {
      Step& step = steps_[number];
      for (Operand& arg : std::span(step.args, static_cast<size_t>(step.num_args))) {
        if (arg.kind == Operand::kSlot && arg.index == slot) arg = result;
      }
      if (step.out_slot == slot) break;
    }
    while (i + 1 < stores_.size() && stores_[i + 1].step == first_step) stores_[++i].source = result;
  }
}

// How many lanes a row of an input takes in a buffer, of `width` columns: none where it is read in place.
int64_t BlockProgram::buffered(const Input& input, const Plane& plane, int64_t width) {
  if (plane.col_stride == 1 && size_of(input.dtype) == 4) return 0;
  return plane.col_stride == 0 ? kLanes : width;
}

// Makes rows x cols elements of an input readable as lanes: in place where it already is, else in `buffer`.
StepBlock::Source BlockProgram::load_input(const Input& input, const Plane& plane, int32_t* buffer, int64_t row, int64_t col,
                                           int64_t rows, int64_t cols) noexcept {
  const auto* data =
      static_cast<const std::byte*>(plane.data) + (row * plane.row_stride + col * plane.col_stride) * size_of(input.dtype);
  const int64_t width = buffered(input, plane, (cols + kLanes - 1) / kLanes * kLanes);
  if (width == 0) return {reinterpret_cast<const int32_t*>(data), plane.row_stride, kLanes};
  if (plane.row_stride == 0) rows = 1;
  const bool is_splat = plane.col_stride == 0;
  load_lanes(input.dtype, data, plane.row_stride, plane.col_stride, rows, is_splat ? kLanes : cols, buffer, width);
  return {buffer, plane.row_stride == 0 ? 0 : width, is_splat ? 0 : kLanes};
}

void BlockProgram::run(const Plane* planes, void* const* outs, int64_t out_row_stride, int64_t out_col_stride, int64_t rows,
                       int64_t cols, std::byte* scratch) const noexcept {
  if (rows <= 0 || cols <= 0) return;
  if (is_copy()) {
    const Plane& from = planes[copied_input_];
    copy_elements(size_of(output_), from.data, from.row_stride, from.col_stride, outs[0], out_row_stride, out_col_stride, rows,
                  cols);
    return;
  }

  // Whether the step of a result may write to the output itself.
  const auto goes_direct = [&](const Store& store) {
    return store.source.kind == Operand::kSlot && out_col_stride == 1 && size_of(store.dtype) == 4;
  };
  bool is_flat = out_row_stride == cols * out_col_stride;
  bool in_place = stores_.size() == 1 && goes_direct(stores_[0]) && num_slots_ == 1;
  bool is_transposed = false;
  for (const Input& input : inputs_) {
    const Plane& plane = planes[input.index];
    is_flat &= plane.row_stride == cols * plane.col_stride;
    const bool is_splat = plane.col_stride == 0 && plane.row_stride == 0;
    in_place &= is_splat || (plane.col_stride == 1 && size_of(input.dtype) == 4);
    is_transposed |= plane.row_stride != 0 && std::abs(plane.row_stride) < std::abs(plane.col_stride);
  }
  if (is_flat) {
    cols *= rows;
    rows = 1;
    is_transposed = false;
  }

  // Where nothing is kept in a slot there is no need for blocks.
  int64_t block_cols = cols, block_rows = rows, width = 0;
  if (steps_.size() != 1 || !in_place) {
    // A block of a transposed input must be narrow for its cache lines to be used whole.
    constexpr int64_t kTransposed = 64;
    block_cols = std::min(cols, is_transposed ? std::min(kTransposed, max_columns_) : max_columns_);
    width = (block_cols + kLanes - 1) / kLanes * kLanes;
    int64_t row_lanes = num_slots_ * width;
    for (const Input& input : inputs_) row_lanes += buffered(input, planes[input.index], width);
    block_rows =
        std::clamp<int64_t>(scratch_elements_ / std::max<int64_t>(row_lanes, 1), 1, std::max<int64_t>(kMaxBlock / width, 1));
    block_rows = std::min(block_rows, rows);
  }

  auto* const slots = reinterpret_cast<int32_t*>(scratch);
  StepBlock::Source loaded[kMaxInputs];
  for (int64_t row = 0; row < rows; row += block_rows) {
    for (int64_t col = 0; col < cols; col += block_cols) {
      StepBlock block;
      block.rows = std::min(block_rows, rows - row);
      block.cols = std::min(block_cols, cols - col);
      int32_t* buffer = slots + num_slots_ * block_rows * width;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        const Plane& plane = planes[inputs_[i].index];
        loaded[i] = load_input(inputs_[i], plane, buffer, row, col, block.rows, block.cols);
        buffer += buffered(inputs_[i], plane, width) * (plane.row_stride == 0 ? 1 : block_rows);
      }
      const auto out_block = [&](const Store& store) {
        return static_cast<std::byte*>(outs[store.output]) + (row * out_row_stride + col * out_col_stride) * size_of(store.dtype);
      };
      const auto source = [&](Operand operand) -> StepBlock::Source {
        if (operand.kind == Operand::kResult) {
          const Store& store = stores_[static_cast<size_t>(operand.index)];
          if (goes_direct(store)) return {reinterpret_cast<const int32_t*>(out_block(store)), out_row_stride, kLanes};
          operand = store.source;
        }
        if (operand.kind == Operand::kInput) return loaded[operand.index];
        if (operand.kind == Operand::kConstant) return {constants_[operand.index].lanes, 0, 0};
        return {slots + operand.index * block_rows * width, width, kLanes};
      };
      const auto store_result = [&](const Store& store) {
        const StepBlock::Source result = source(store.source);
        store_lanes(store.dtype, result.data, result.row_stride, result.step == 0 ? 0 : 1, out_block(store), out_row_stride,
                    out_col_stride, block.rows, block.cols);
      };
      auto store = stores_.begin();
      for (size_t number = 0; number < steps_.size(); ++number) {
        const Step& step = steps_[number];
        for (int i = 0; i < step.num_args; ++i) block.in[i] = source(step.args[i]);
        if (store != stores_.end() && store->step == number && goes_direct(*store)) {
          block.out = reinterpret_cast<int32_t*>(out_block(*store++));
          block.out_row_stride = out_row_stride;
        } else {
          block.out = slots + step.out_slot * block_rows * width;
          block.out_row_stride = width;
        }
        step.function(block);
        for (; store != stores_.end() && store->step == number; ++store) store_result(*store);
      }
      for (; store != stores_.end(); ++store) store_result(*store);
    }
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
