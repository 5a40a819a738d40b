#include "block_draft.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

namespace aspen::cpu::ASPEN_TARGET {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw GraphError("block program: " + what); }

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

// Checks that register `reg` can be read as `wanted` (kBits: as it is) and returns the lane it is then read as.
Lane check_use(const Draft& draft, int reg, Lane wanted) {
  const Register& source = draft.registers[reg];
  if (source.lane == wanted || wanted == Lane::kBits) return source.lane;
  if (source.lane == Lane::kBits && (wanted != Lane::kBool || source.is_mask)) return wanted;
  refuse("register " + std::to_string(reg) + " is read as another type than it has");
}

Draft parse_words(WordReader& words, std::span<const DType> inputs, size_t num_further) {
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
  const auto result = [&] {
    return static_cast<int>(words.integer(0, static_cast<int64_t>(draft.registers.size()) - 1, "a block program's result"));
  };
  draft.result = result();
  for (size_t i = 0; i < num_further; ++i) draft.further.push_back(result());
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
void skip_copies(Draft& draft, DType output, std::span<const DType> further) {
  const auto source = [&](int reg) {
    while (draft.registers[reg].opcode == k_copy) reg = draft.registers[reg].args[0];
    return reg;
  };
  for (int reg = draft.first_instruction(); reg < static_cast<int>(draft.registers.size()); ++reg) {
    for (int i = 0; i < draft.num_args(reg); ++i) draft.registers[reg].args[i] = source(draft.registers[reg].args[i]);
  }
  const auto stored = [&](int result, DType dtype) {
    result = source(result);
    while (conversion_to(dtype) >= 0 && draft.registers[result].opcode == conversion_to(dtype)) {
      result = draft.registers[result].args[0];
    }
    return result;
  };
  draft.result = stored(draft.result, output);
  for (size_t i = 0; i < further.size(); ++i) draft.further[i] = stored(draft.further[i], further[i]);
}

// Counts the uses of each register that a result depends on; others have none and are dropped.
void count_uses(Draft& draft) {
  for (Register& reg : draft.registers) reg.uses = 0;
  draft.registers[draft.result].uses = 1;
  for (const int result : draft.further) ++draft.registers[result].uses;
  for (int reg = static_cast<int>(draft.registers.size()) - 1; reg >= draft.first_instruction(); --reg) {
    if (draft.registers[reg].uses == 0) continue;
    for (int i = 0; i < draft.num_args(reg); ++i) ++draft.registers[draft.registers[reg].args[i]].uses;
  }
}

// Makes an earlier float, of which the output is one too, the result.
void end_at(Draft& draft, int reg) {
  draft.result = reg;
  count_uses(draft);
}

// Whether the register is a constant, and no NaN as a float.
bool is_bound(const Draft& draft, int reg) {
  return draft.is_constant(reg) && !std::isnan(std::bit_cast<float>(draft.constants[reg - draft.num_inputs]));
}

// Whether the register is this constant.
bool is_value(const Draft& draft, int reg, float value) {
  return draft.is_constant(reg) && std::bit_cast<float>(draft.constants[reg - draft.num_inputs]) == value;
}

}  // namespace

Draft read_draft(WordReader& words, std::span<const DType> inputs, DType output, std::span<const DType> further) {
  Draft draft = parse_words(words, inputs, further.size());
  skip_copies(draft, output, further);
  if (draft.is_copy(inputs, output)) return draft;
  const auto check_result = [&](int result, DType dtype) {
    if (draft.registers[result].opcode == -2) refuse("it converts a dtype that it can only copy");
    Lane lane;
    if (!lane_of(dtype, &lane)) refuse("it computes a dtype that it can only copy");
    check_use(draft, result, lane);
  };
  check_result(draft.result, output);
  for (size_t i = 0; i < further.size(); ++i) check_result(draft.further[i], further[i]);
  count_uses(draft);
  return draft;
}

namespace {

// Joins products with the difference or the product that is a factor of them alone. They come after what looks for products.
void fuse_factors(Draft& draft) {
  count_uses(draft);
  for (int at = draft.first_instruction(); at < static_cast<int>(draft.registers.size()); ++at) {
    Register& reg = draft.registers[at];
    if (reg.opcode != k_mul_f && reg.opcode != k_fma_f) continue;
    const auto is_factor = [&](int arg, int opcode) {
      return draft.registers[arg].opcode == opcode && draft.registers[arg].uses == 1;
    };
    auto& [a, b, c, unused] = reg.args;
    const bool is_sum = reg.opcode == k_fma_f;
    if (is_factor(b, k_sub_f) || (!is_sum && is_factor(b, k_mul_f) && !is_factor(a, k_sub_f))) std::swap(a, b);
    const auto& factor = draft.registers[a].args;
    if (is_factor(a, k_sub_f)) {
      reg.opcode = is_sum ? k_fused_sub_fma : k_fused_sub_mul;
      reg.args = {factor[0], factor[1], b, c};
    } else if (!is_sum && is_factor(a, k_mul_f)) {
      reg.opcode = k_fused_mul_mul;
      reg.args = {factor[0], factor[1], b, 0};
    }
  }
}

}  // namespace

// A product is joined with the sum that is its only use (one rounding instead of two), as XLA's CPU compiler does too.
void fuse(Draft& draft) {
  const auto is = [&](int reg, int opcode) { return draft.registers[reg].opcode == opcode; };
  const auto is_only_use = [&](int reg, int opcode) { return is(reg, opcode) && draft.registers[reg].uses == 1; };
  for (int at = draft.first_instruction(); at < static_cast<int>(draft.registers.size()); ++at) {
    Register& reg = draft.registers[at];
    int& a = reg.args[0];
    int& b = reg.args[1];
    const auto become = [&](int opcode, std::array<int, 4> args) {
      reg.opcode = opcode;
      reg.args = args;
    };
    if (reg.opcode == k_max_f) {
      if (is_bound(draft, a)) std::swap(a, b);
      if (is_bound(draft, b) && draft.constants[b - draft.num_inputs] == 0) become(k_relu_f, {a});
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
      if (is_bound(draft, a)) std::swap(a, b);
      if (!is_bound(draft, b)) continue;
      auto [x, y, z, unused] = draft.registers[a].args;
      if (is_only_use(a, k_relu_f))
        become(k_fused_relu_cap, {x, b});
      else if (is_only_use(a, k_fused_add_relu))
        become(k_fused_add_relu_cap, {x, y, b});
      else if (is_only_use(a, k_fused_fma_relu))
        become(k_fused_fma_relu_cap, {x, y, z, b});
      else if (is_only_use(a, k_max_f) && is_bound(draft, y))
        become(k_fused_clamp, {x, y, b});
    } else if (reg.opcode == k_mul_f) {
      if (is(b, k_logistic_f)) std::swap(a, b);
      if (is_only_use(a, k_logistic_f) && draft.registers[a].args[0] == b) become(k_fused_silu, {b});
      // x * ((1 + tanh(u)) / 2), multiplied in any order, is x times the logistic function of 2 u.
      for (const auto& [outer, inner] : {std::pair(a, b), std::pair(b, a)}) {
        if (reg.opcode != k_mul_f || !is_only_use(inner, k_mul_f)) continue;
        int factors[] = {outer, draft.registers[inner].args[0], draft.registers[inner].args[1]};
        const auto take = [&](int place, auto fits) {
          const auto found = std::find_if(factors + place, std::end(factors), fits);
          if (found == std::end(factors)) return false;
          std::swap(factors[place], *found);
          return true;
        };
        const auto tanh_of = [&](int sum) {
          if (!is_only_use(sum, k_add_f)) return -1;
          const auto& terms = draft.registers[sum].args;
          const int tanh = is_value(draft, terms[0], 1.0f) ? terms[1] : is_value(draft, terms[1], 1.0f) ? terms[0] : -1;
          return tanh >= 0 && is_only_use(tanh, k_tanh_f) ? tanh : -1;
        };
        if (take(0, [&](int factor) { return is_value(draft, factor, 0.5f); }) &&
            take(1, [&](int factor) { return tanh_of(factor) >= 0; })) {
          become(k_fused_tanh_gate, {factors[2], draft.registers[tanh_of(factors[1])].args[0]});
        }
      }
      if (reg.opcode != k_mul_f) continue;
      // x * b * erfc(-x * c) is the exact GELU.
      if (is(a, k_erfc_f)) std::swap(a, b);
      if (is_only_use(a, k_mul_f) && is_only_use(b, k_erfc_f) && is_only_use(draft.registers[b].args[0], k_mul_f)) {
        const auto& halved = draft.registers[a].args;
        const auto& scaled = draft.registers[draft.registers[b].args[0]].args;
        const int x = draft.registers[scaled[0]].args[0];
        if (is_only_use(scaled[0], k_neg_f) && (halved[0] == x || halved[1] == x)) {
          become(k_fused_gelu, {x, halved[halved[0] == x ? 1 : 0], scaled[1]});
        }
      }
    }
  }
  fuse_factors(draft);
  count_uses(draft);
}

std::vector<Link> take_chain(Draft& draft, const std::function<bool(int)>& fits) {
  std::vector<Link> chain;
  int current = 0;
  const auto link_of = [&](int reg, Link& link) {
    const auto [a, b, c, d] = draft.registers[reg].args;
    const int opcode = draft.registers[reg].opcode;
    if (opcode == k_relu_f) {
      link = {Finish::kAtLeast, -1, 0.0f};
      return a == current;
    }
    if (draft.num_args(reg) != 2 || (a == current) == (b == current)) return false;
    const int other = a == current ? b : a;
    if (draft.is_constant(other)) {
      link = {{}, -1, std::bit_cast<float>(draft.constants[other - draft.num_inputs])};
    } else if (draft.is_input(other) && other != 0 && fits(other)) {
      link = {{}, other, 0.0f};
    } else {
      return false;
    }
    switch (opcode) {
      case k_add_f:
        link.kind = Finish::kAdd;
        return true;
      case k_sub_f:
        link.kind = Finish::kSubtract;
        return other == b;
      case k_mul_f:
        link.kind = Finish::kMultiply;
        return true;
      case k_max_f:
        link.kind = Finish::kAtLeast;
        return is_bound(draft, other);
      case k_min_f:
        link.kind = Finish::kAtMost;
        return is_bound(draft, other);
      default:
        return false;
    }
  };
  for (int reg = draft.first_instruction(); reg < static_cast<int>(draft.registers.size()); ++reg) {
    if (draft.registers[reg].uses == 0 || draft.registers[current].uses != 1 || chain.size() == Finish::kMaxSteps) continue;
    Link link;
    if (!link_of(reg, link)) continue;
    chain.push_back(link);
    current = reg;
  }
  for (int reg = std::max(current + 1, draft.first_instruction()); reg < static_cast<int>(draft.registers.size()); ++reg) {
    for (int i = 0; i < draft.num_args(reg); ++i) {
      if (draft.registers[reg].args[i] == current) draft.registers[reg].args[i] = 0;
    }
  }
  if (draft.result == current) draft.result = 0;
  count_uses(draft);
  return chain;
}

bool take_square(Draft& draft) {
  const Register& last = draft.registers[draft.result];
  if (last.opcode != k_square_f && (last.opcode != k_mul_f || last.args[0] != last.args[1])) return false;
  end_at(draft, last.args[0]);
  return true;
}

int take_subtrahend(Draft& draft, const std::function<bool(int)>& fits) {
  const Register& last = draft.registers[draft.result];
  if (last.opcode != k_sub_f || !draft.is_input(last.args[1]) || !fits(last.args[1])) return -1;
  const int subtrahend = last.args[1];
  end_at(draft, last.args[0]);
  return subtrahend;
}

}  // namespace aspen::cpu::ASPEN_TARGET
