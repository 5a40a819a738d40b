#include "block_steps.h"

#include <string_view>
#include <utility>

#include "lane_ops.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// The first letter of a lane's name in an instruction's name ("add_f", "i_from_b").
constexpr Lane lane_of(char letter) { return letter == 'f' ? Lane::kFloat : letter == 'b' ? Lane::kBool : Lane::kInt; }

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

}  // namespace

constinit const std::array<Instruction, kNumOpcodes> kInstructions = [] {
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
  ASPEN_BLOCK_OP(fused_gelu, k_fused_gelu, 3)
  ASPEN_BLOCK_OP(fused_tanh_gate, k_fused_tanh_gate, 2)
  ASPEN_BLOCK_OP(fused_sub_mul, k_fused_sub_mul, 3)
  ASPEN_BLOCK_OP(fused_sub_fma, k_fused_sub_fma, 4)
  ASPEN_BLOCK_OP(fused_mul_mul, k_fused_mul_mul, 3)
#undef ASPEN_BLOCK_OP
  return table;
}();

}  // namespace aspen::cpu::ASPEN_TARGET
