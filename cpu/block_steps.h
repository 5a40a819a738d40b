// The instructions of block programs as steps: each a function on a block, and the lanes that it takes and gives.
#pragma once

#include <array>
#include <cstdint>

#include "block.h"

namespace aspen::cpu::ASPEN_TARGET {

// What a register's lanes hold. Constants, and what is copied or selected from constants alone, are bits that fit any use.
enum class Lane : uint8_t { kBits, kFloat, kInt, kBool };

struct Signature {
  Lane args[3] = {Lane::kBits, Lane::kBits, Lane::kBits};  // kBits: any lane, the same for all such and for the result
  Lane result = Lane::kBits;
};

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
  k_fused_gelu,
  k_fused_tanh_gate,
  k_fused_sub_mul,
  k_fused_sub_fma,
  k_fused_mul_mul,
  kNumOpcodes,
};

// The instructions by opcode; those without a name are none.
extern const std::array<Instruction, kNumOpcodes> kInstructions;

}  // namespace aspen::cpu::ASPEN_TARGET
