#include "block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "lane_ops.h"
#include "planes.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// What a register's lanes hold. Constants, and what is copied or selected from constants alone, are bits that fit any use.
enum class Lane : uint8_t { kBits, kFloat, kInt, kBool };

// The first letter of a lane's name in an instruction's name ("add_f", "i_from_b").
constexpr Lane lane_of(char letter) { return letter == 'f' ? Lane::kFloat : letter == 'b' ? Lane::kBool : Lane::kInt; }

struct Signature {
  Lane args[3] = {Lane::kBits, Lane::kBits, Lane::kBits};  // kBits: any lane, the same for all such and for the result
  Lane result = Lane::kBits;
};

constexpr Signature signature_of(std::string_view name) {
  if (name == "copy") return {};
  if (name == "select") return {{Lane::kBool, Lane::kBits, Lane::kBits}, Lane::kBits};
  const Lane arg = lane_of(name.back());
  if (name.substr(1, 6) == "_from_" || name.substr(1, 6) == "_bits_") return {{arg, arg, arg}, lane_of(name.front())};
  bool is_test = false;
  for (std::string_view test : {"eq_", "ne_", "lt_", "le_", "gt_", "ge_", "is_finite_"})
    is_test |= name.substr(0, test.size()) == test;
  return {{arg, arg, arg}, is_test ? Lane::kBool : arg};
}

// Reads a vector as whichever type the instruction wants.
struct Lanes {
  Ints bits;
  operator Ints() const { return bits; }
  operator Floats() const { return as_floats(bits); }
};
ASPEN_INLINE Ints bits_of(Ints x) { return x; }
ASPEN_INLINE Ints bits_of(Floats x) { return as_ints(x); }

template <const auto& kFunction, int... kArgs>
ASPEN_INLINE void run_step_of(const StepBlock& block, std::integer_sequence<int, kArgs...>) {
  const int64_t vectors = block.cols / kLanes;
  const int tail = static_cast<int>(block.cols % kLanes);
  // The longer of the two loops is the inner one: the blocks of a convolution are only a vector or two wide.
  const bool down = block.rows > vectors;
  const int64_t inner = down ? block.rows : vectors;
  const int64_t outer = down ? vectors : block.rows;
  // Copies, which the stores below cannot change, so that they stay in registers.
  const int64_t inner_steps[] = {(down ? block.in[kArgs].row_stride : block.in[kArgs].step)...};
  const int64_t out_inner_step = down ? block.out_row_stride : kLanes;
  for (int64_t i = 0; i < outer; ++i) {
    int32_t* out = block.out + i * (down ? kLanes : block.out_row_stride);
    const int32_t* in[] = {block.in[kArgs].data + i * (down ? block.in[kArgs].step : block.in[kArgs].row_stride)...};
#pragma GCC unroll 2
    for (int64_t j = 0; j < inner; ++j) {
      store(out, bits_of(kFunction(Lanes{load(in[kArgs])}...)));
      out += out_inner_step;
      ((in[kArgs] += inner_steps[kArgs]), ...);
    }
  }
  if (tail == 0) return;
  int32_t* out = block.out + vectors * kLanes;
  const int32_t* in[] = {block.in[kArgs].data + vectors * block.in[kArgs].step...};
  for (int64_t row = 0; row < block.rows; ++row) {
    store_partial(out, bits_of(kFunction(Lanes{load_partial(in[kArgs], tail)}...)), tail);
    out += block.out_row_stride;
    ((in[kArgs] += block.in[kArgs].row_stride), ...);
  }
}
template <const auto& kFunction, int kNumArgs>
void run_step(const StepBlock& block) noexcept {
  run_step_of<kFunction>(block, std::make_integer_sequence<int, kNumArgs>());
}

struct Instruction {
  const char* name = nullptr;
  int num_args = 0;
  Signature signature;
  void (*function)(const StepBlock&) noexcept = nullptr;
};

enum Opcode : int {
#define ASPEN_BLOCK_OP(name, number, args) k_##name = number,
#include "block_ops.inc"
#undef ASPEN_BLOCK_OP
  kNumEncoded,
  k_fused_add_relu = kNumEncoded,
  k_fused_fma_relu,
  k_fused_fma_add,
  k_fused_fma_add_relu,
  k_fused_relu_cap,
  k_fused_add_relu_cap,
  k_fused_fma_relu_cap,
  k_fused_clamp,
  k_fused_silu,
  kNumOpcodes,
};

constexpr auto kInstructions = [] {
  std::array<Instruction, kNumOpcodes> table{};
#define ASPEN_BLOCK_OP(name, number, args) table[number] = {#name, args, signature_of(#name), run_step<lane_ops::name, args>};
#include "block_ops.inc"
  ASPEN_BLOCK_OP(fused_add_relu, k_fused_add_relu, 2)
  ASPEN_BLOCK_OP(fused_fma_relu, k_fused_fma_relu, 3)
  ASPEN_BLOCK_OP(fused_fma_add, k_fused_fma_add, 4)
  ASPEN_BLOCK_OP(fused_fma_add_relu, k_fused_fma_add_relu, 4)
  ASPEN_BLOCK_OP(fused_relu_cap, k_fused_relu_cap, 2)
  ASPEN_BLOCK_OP(fused_add_relu_cap, k_fused_add_relu_cap, 3)
  ASPEN_BLOCK_OP(fused_fma_relu_cap, k_fused_fma_relu_cap, 4)
  ASPEN_BLOCK_OP(fused_clamp, k_fused_clamp, 3)
  ASPEN_BLOCK_OP(fused_silu, k_fused_silu, 1)
#undef ASPEN_BLOCK_OP
  return table;
}();

// How a dtype is held in lanes; false where it cannot be.
bool lane_of(DType dtype, Lane* lane) {
  switch (dtype) {
    case DType::kBool:
      *lane = Lane::kBool;
      return true;
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
      *lane = Lane::kInt;
      return true;
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      *lane = Lane::kFloat;
      return true;
    default:
      return false;
  }
}

[[noreturn]] void refuse(const std::string& what) { throw GraphError("block program: " + what); }

// A register while the program is being read: an input, a constant or the result of an instruction.
struct Register {
  Lane lane = Lane::kBits;
  bool is_mask = false;  // kBits only: all ones or all zeros, thus good as a bool
  int opcode = -1;       // -1: not an instruction
  std::array<int, 4> args = {};
  int uses = 0;
};

// The program as a list of registers in order of assignment.
struct Draft {
  int num_inputs = 0;
  std::vector<int32_t> constants;
  std::vector<Register> registers;
  int result = 0;

  int first_instruction() const { return num_inputs + static_cast<int>(constants.size()); }
  bool is_input(int reg) const { return reg < num_inputs; }
  bool is_constant(int reg) const { return reg >= num_inputs && reg < first_instruction(); }
  int num_args(int reg) const { return kInstructions[registers[reg].opcode].num_args; }
};

// Checks that register `reg` can be read as `wanted` (kBits: as it is) and returns the lane it is then read as.
Lane check_use(const Draft& draft, int reg, Lane wanted) {
  const Register& source = draft.registers[reg];
  if (source.lane == wanted || wanted == Lane::kBits) return source.lane;
  if (source.lane == Lane::kBits && (wanted != Lane::kBool || source.is_mask)) return wanted;
  refuse("register " + std::to_string(reg) + " is read as another type than it has");
}

Draft read_draft(WordReader& words, std::span<const DType> inputs) {
  constexpr int kMaxConstants = 4096;
  constexpr int kMaxInstructions = 4096;
  constexpr int kWords = 5;
  Draft draft;
  draft.num_inputs = static_cast<int>(words.integer(0, BlockProgram::kMaxInputs, "a block program's number of inputs"));
  if (static_cast<size_t>(draft.num_inputs) != inputs.size()) {
    refuse("it has " + std::to_string(draft.num_inputs) + " inputs where the op has " + std::to_string(inputs.size()));
  }
  for (const DType dtype : inputs) {
    Register& input = draft.registers.emplace_back();
    if (!lane_of(dtype, &input.lane)) input.opcode = -2;
  }
  const auto constants = words.list();
  if (constants.size() > kMaxConstants) refuse(std::to_string(constants.size()) + " constants are too many");
  for (const int64_t word : constants) {
    if (word != static_cast<int32_t>(word)) refuse("constant " + std::to_string(word) + " does not fit 32 bits");
    draft.constants.push_back(static_cast<int32_t>(word));
    draft.registers.emplace_back().is_mask = word == 0 || word == -1;
  }
  const auto code = words.list();
  if (code.size() % kWords != 0 || code.size() / kWords > kMaxInstructions) {
    refuse("an instruction list of " + std::to_string(code.size()) + " words");
  }
  for (size_t at = 0; at < code.size(); at += kWords) {
    const int64_t opcode = code[at];
    if (opcode < 0 || opcode >= kNumEncoded || kInstructions[opcode].name == nullptr) {
      refuse("unknown opcode " + std::to_string(opcode));
    }
    const auto destination = static_cast<int64_t>(draft.registers.size());
    if (code[at + 1] != destination) {
      refuse("instruction " + std::to_string(at / kWords) + " writes register " + std::to_string(code[at + 1]) + " where " +
             std::to_string(destination) + " is next");
    }
    const Instruction& instruction = kInstructions[opcode];
    Register reg;
    reg.opcode = static_cast<int>(opcode);
    reg.lane = instruction.signature.result;
    reg.is_mask = true;
    for (int i = 0; i < instruction.num_args; ++i) {
      const int64_t arg = code[at + 2 + i];
      if (arg < 0 || arg >= destination) refuse("register " + std::to_string(arg) + " is read before it is written");
      reg.args[i] = static_cast<int>(arg);
      if (draft.registers[arg].opcode == -2) refuse("input " + std::to_string(arg) + " has a dtype that it can only copy");
      const Lane wanted = instruction.signature.args[i];
      const Lane lane = check_use(draft, reg.args[i], wanted == Lane::kBits ? reg.lane : wanted);
      if (wanted == Lane::kBits) {
        reg.is_mask &= draft.registers[arg].is_mask;
        if (reg.lane == Lane::kBits && lane != Lane::kBits) {
          reg.lane = lane;
          for (int earlier = 0; earlier < i; ++earlier) {
            if (instruction.signature.args[earlier] == Lane::kBits) check_use(draft, reg.args[earlier], lane);
          }
        }
      }
    }
    draft.registers.push_back(reg);
  }
  draft.result = static_cast<int>(words.integer(0, static_cast<int64_t>(draft.registers.size()) - 1, "a block program's result"));
  return draft;
}

// The instruction that brings a register to the values of a dtype that is stored anyway; -1 where there is none.
int conversion_to(DType dtype) {
  switch (dtype) {
    case DType::kI8:
      return k_as_i8_i;
    case DType::kI16:
      return k_as_i16_i;
    case DType::kU8:
      return k_as_u8_i;
    case DType::kU16:
      return k_as_u16_i;
    case DType::kF16:
      return k_as_f16_f;
    case DType::kBF16:
      return k_as_bf16_f;
    default:
      return -1;
  }
}

// Reads through copies (widening an input is one), and leaves the last rounding or wrapping to the store.
void skip_copies(Draft& draft, DType output) {
  const auto source = [&](int reg) {
    while (draft.registers[reg].opcode == k_copy) reg = draft.registers[reg].args[0];
    return reg;
  };
  for (int reg = draft.first_instruction(); reg < static_cast<int>(draft.registers.size()); ++reg) {
    for (int i = 0; i < draft.num_args(reg); ++i) draft.registers[reg].args[i] = source(draft.registers[reg].args[i]);
  }
  draft.result = source(draft.result);
  while (conversion_to(output) >= 0 && draft.registers[draft.result].opcode == conversion_to(output)) {
    draft.result = draft.registers[draft.result].args[0];
  }
}

// Counts the uses of each register that the result depends on; others have none and are dropped.
void count_uses(Draft& draft) {
  for (Register& reg : draft.registers) reg.uses = 0;
  draft.registers[draft.result].uses = 1;
  for (int reg = static_cast<int>(draft.registers.size()) - 1; reg >= draft.first_instruction(); --reg) {
    if (draft.registers[reg].uses == 0) continue;
    for (int i = 0; i < draft.num_args(reg); ++i) ++draft.registers[draft.registers[reg].args[i]].uses;
  }
}

// Joins instructions that commonly follow each other, which saves a pass over the block. A product is joined with the sum that
// is its only use (one rounding instead of two), as XLA's CPU compiler does too.
void fuse(Draft& draft) {
  const auto is = [&](int reg, int opcode) { return draft.registers[reg].opcode == opcode; };
  const auto is_only_use = [&](int reg, int opcode) { return is(reg, opcode) && draft.registers[reg].uses == 1; };
  const auto is_bound = [&](int reg) {
    return draft.is_constant(reg) && !std::isnan(std::bit_cast<float>(draft.constants[reg - draft.num_inputs]));
  };
  for (int at = draft.first_instruction(); at < static_cast<int>(draft.registers.size()); ++at) {
    Register& reg = draft.registers[at];
    int& a = reg.args[0];
    int& b = reg.args[1];
    const auto become = [&](int opcode, std::array<int, 4> args) {
      reg.opcode = opcode;
      reg.args = args;
    };
    if (reg.opcode == k_max_f) {
      if (is_bound(a)) std::swap(a, b);
      if (is_bound(b) && draft.constants[b - draft.num_inputs] == 0) become(k_relu_f, {a});
    }
    if (reg.opcode == k_add_f) {
      const auto join = [&](int opcode, auto joined) {
        if (reg.opcode != k_add_f) return;
        if (is_only_use(b, opcode)) std::swap(a, b);
        if (is_only_use(a, opcode)) joined(draft.registers[a].args);
      };
      join(k_mul_f, [&](auto args) { become(k_fma_f, {args[0], args[1], b}); });
      join(k_fma_f, [&](auto args) { become(k_fused_fma_add, {args[0], args[1], args[2], b}); });
    } else if (reg.opcode == k_relu_f) {
      if (is_only_use(a, k_add_f))
        become(k_fused_add_relu, draft.registers[a].args);
      else if (is_only_use(a, k_fma_f))
        become(k_fused_fma_relu, draft.registers[a].args);
      else if (is_only_use(a, k_fused_fma_add))
        become(k_fused_fma_add_relu, draft.registers[a].args);
    } else if (reg.opcode == k_min_f) {
      if (is_bound(a)) std::swap(a, b);
      if (!is_bound(b)) continue;
      auto [x, y, z, unused] = draft.registers[a].args;
      if (is_only_use(a, k_relu_f))
        become(k_fused_relu_cap, {x, b});
      else if (is_only_use(a, k_fused_add_relu))
        become(k_fused_add_relu_cap, {x, y, b});
      else if (is_only_use(a, k_fused_fma_relu))
        become(k_fused_fma_relu_cap, {x, y, z, b});
      else if (is_only_use(a, k_max_f) && is_bound(y))
        become(k_fused_clamp, {x, y, b});
    } else if (reg.opcode == k_mul_f) {
      if (is(b, k_logistic_f)) std::swap(a, b);
      if (is_only_use(a, k_logistic_f) && draft.registers[a].args[0] == b) become(k_fused_silu, {b});
    }
  }
}

}  // namespace

BlockProgram BlockProgram::parse(WordReader& words, std::span<const DType> inputs, DType output) {
  Draft draft = read_draft(words, inputs);
  skip_copies(draft, output);
  BlockProgram program;
  program.output_ = output;
  if (draft.is_input(draft.result) && inputs[draft.result] == output) {
    program.copied_input_ = draft.result;
    program.inputs_.push_back({draft.result, output});
    program.result_ = {Operand::kInput, 0};
    return program;
  }
  if (draft.registers[draft.result].opcode == -2) refuse("it converts a dtype that it can only copy");
  Lane lane;
  if (!lane_of(output, &lane)) refuse("it computes a dtype that it can only copy");
  check_use(draft, draft.result, lane);

  count_uses(draft);
  fuse(draft);
  count_uses(draft);

  // Registers get the slots of registers that are no longer needed.
  const int num_registers = static_cast<int>(draft.registers.size());
  std::vector<int> last_use(num_registers, -1);
  for (int reg = draft.first_instruction(); reg < num_registers; ++reg) {
    if (draft.registers[reg].uses == 0) continue;
    for (int i = 0; i < draft.num_args(reg); ++i) last_use[draft.registers[reg].args[i]] = reg;
  }
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
    program.steps_.push_back(step);
  }
  program.result_ = operands[draft.result];

  // The slots and the gathered inputs of one block should together stay in the L1 cache beside what is streamed through it.
  constexpr int64_t kCacheBytes = 24 * 1024;
  const auto buffers = static_cast<int64_t>(program.num_slots_ + program.inputs_.size());
  program.slot_elements_ = std::clamp<int64_t>(kCacheBytes / 4 / std::max<int64_t>(buffers, 1) / 64 * 64, 256, 2048);
  program.scratch_bytes_ = static_cast<size_t>(buffers * program.slot_elements_ * 4);
  return program;
}

// Makes rows x cols elements of an input readable as lanes: in place where it already is, else in `buffer`.
StepBlock::Source BlockProgram::load_input(const Input& input, const Plane& plane, int32_t* buffer, int64_t row, int64_t col,
                                           int64_t rows, int64_t cols) const noexcept {
  const auto* data =
      static_cast<const std::byte*>(plane.data) + (row * plane.row_stride + col * plane.col_stride) * size_of(input.dtype);
  if (plane.col_stride == 1 && size_of(input.dtype) == 4) {
    return {reinterpret_cast<const int32_t*>(data), plane.row_stride, kLanes};
  }
  if (plane.row_stride == 0) rows = 1;
  const bool is_splat = plane.col_stride == 0;
  const int64_t width = is_splat ? kLanes : (cols + kLanes - 1) / kLanes * kLanes;
  load_lanes(input.dtype, data, plane.row_stride, plane.col_stride, rows, is_splat ? kLanes : cols, buffer, width);
  return {buffer, plane.row_stride == 0 ? 0 : width, is_splat ? 0 : kLanes};
}

void BlockProgram::run(const Plane* planes, void* out, int64_t out_row_stride, int64_t out_col_stride, int64_t rows, int64_t cols,
                       std::byte* scratch) const noexcept {
  if (rows <= 0 || cols <= 0) return;
  if (is_copy()) {
    const Plane& from = planes[copied_input_];
    copy_elements(size_of(output_), from.data, from.row_stride, from.col_stride, out, out_row_stride, out_col_stride, rows, cols);
    return;
  }

  const bool direct = out_col_stride == 1 && size_of(output_) == 4 && !steps_.empty();
  bool is_flat = out_row_stride == cols * out_col_stride;
  bool in_place = direct && num_slots_ == 1;
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
    block_cols = std::min(cols, is_transposed ? std::min(kTransposed, slot_elements_) : slot_elements_);
    width = (block_cols + kLanes - 1) / kLanes * kLanes;
    block_rows = std::max<int64_t>(slot_elements_ / width, 1);
  }

  auto* const slots = reinterpret_cast<int32_t*>(scratch);
  int32_t* const buffers = slots + num_slots_ * slot_elements_;
  StepBlock::Source loaded[kMaxInputs];
  for (int64_t row = 0; row < rows; row += block_rows) {
    for (int64_t col = 0; col < cols; col += block_cols) {
      StepBlock block;
      block.rows = std::min(block_rows, rows - row);
      block.cols = std::min(block_cols, cols - col);
      for (size_t i = 0; i < inputs_.size(); ++i) {
        loaded[i] = load_input(inputs_[i], planes[inputs_[i].index], buffers + static_cast<int64_t>(i) * slot_elements_, row, col,
                               block.rows, block.cols);
      }
      const auto source = [&](Operand operand) -> StepBlock::Source {
        if (operand.kind == Operand::kInput) return loaded[operand.index];
        if (operand.kind == Operand::kConstant) return {constants_[operand.index].lanes, 0, 0};
        return {slots + operand.index * slot_elements_, width, kLanes};
      };
      std::byte* const out_block =
          static_cast<std::byte*>(out) + (row * out_row_stride + col * out_col_stride) * size_of(output_);
      for (const Step& step : steps_) {
        for (int i = 0; i < step.num_args; ++i) block.in[i] = source(step.args[i]);
        if (direct && &step == &steps_.back()) {
          block.out = reinterpret_cast<int32_t*>(out_block);
          block.out_row_stride = out_row_stride;
        } else {
          block.out = slots + step.out_slot * slot_elements_;
          block.out_row_stride = width;
        }
        step.function(block);
      }
      if (!direct) {
        const StepBlock::Source result = source(result_);
        store_lanes(output_, result.data, result.row_stride, result.step == 0 ? 0 : 1, out_block, out_row_stride, out_col_stride,
                    block.rows, block.cols);
      }
    }
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
