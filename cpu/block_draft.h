// Block programs while they are being read: checked, then brought into the form in which they are run.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"
#include "block_steps.h"

namespace aspen::cpu::ASPEN_TARGET {

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
  bool is_copy = false;  // the result is an input of the output's dtype

  int first_instruction() const { return num_inputs + static_cast<int>(constants.size()); }
  bool is_input(int reg) const { return reg < num_inputs; }
  bool is_constant(int reg) const { return reg >= num_inputs && reg < first_instruction(); }
  int num_args(int reg) const { return kInstructions[registers[reg].opcode].num_args; }
};

// Reads and checks a program over inputs of these dtypes. Throws GraphError. Registers that the result does not need have no
// uses.
Draft read_draft(WordReader& words, std::span<const DType> inputs, DType output);

}  // namespace aspen::cpu::ASPEN_TARGET
