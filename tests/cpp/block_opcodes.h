// The opcodes of block programs by name: k_add_f and so on.
#pragma once

#include <cstdint>

namespace aspen::cpu::testing {

enum Opcode : int64_t {
#define ASPEN_BLOCK_OP(name, number, args) k_##name = number,
#include "cpu/block_ops.inc"
#undef ASPEN_BLOCK_OP
};

}  // namespace aspen::cpu::testing
