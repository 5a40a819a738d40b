// Block programs while they are being read: checked, then brought into the form in which they are run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"
#include "block_steps.h"
#include "finish.h"

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
  int result = 0;            // the register that is the first output
  std::vector<int> further;  // those that are the outputs beside it

  int first_instruction() const { return num_inputs + static_cast<int>(constants.size()); }
  bool is_input(int reg) const { return reg < num_inputs; }
  bool is_constant(int reg) const { return reg >= num_inputs && reg < first_instruction(); }
  // Whether the result is an input of the output's dtype, which may then be any.
  bool is_copy(std::span<const DType> inputs, DType output) const {
    return further.empty() && is_input(result) && inputs[result] == output;
  }
  int num_args(int reg) const { return kInstructions[registers[reg].opcode].num_args; }
};

// Reads and checks a program over inputs of these dtypes. Throws GraphError. Registers that no result needs have no uses.
Draft read_draft(WordReader& words, std::span<const DType> inputs, DType output, std::span<const DType> further = {});

// Joins instructions that commonly follow each other, which saves a pass over the block.
void fuse(Draft& draft);

// An instruction on floats that has the result of the one before it, or input 0, and one other operand.
struct Link {
  Finish::Kind kind;
  int input;  // other than 0; -1: the constant
  float constant;
};

// Takes the instructions off the program that can be done as links of a chain from input 0 on: input 0 of what is left is the
// chain's result. `fits` says which inputs may be operands; they are floats.
std::vector<Link> take_chain(Draft& draft, const std::function<bool(int input)>& fits);

// Takes the last instruction off the program if it is the square of a float, which is then the program's result.
bool take_square(Draft& draft);

// Takes the last instruction off the program if it subtracts an input that `fits` from another float, which is then the
// program's result. Returns the input; -1 where there is none.
int take_subtrahend(Draft& draft, const std::function<bool(int input)>& fits);

}  // namespace aspen::cpu::ASPEN_TARGET
