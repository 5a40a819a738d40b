// Block programs: random programs on random views, NaN in joined instructions, and hostile words.
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "block_opcodes.h"
#include "typed_case.h"

namespace {

using namespace aspen;
using aspen::cpu::available_targets;
using aspen::cpu::Target;
using namespace aspen::cpu::testing;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool is_float(DType dtype) { return dtype == DType::kF32 || is_half(dtype); }

// Random programs in exact arithmetic: whole numbers, small enough that float32 and a fused multiply-add do not round.
struct RandomProgram {
  enum Lane { kFloat, kInt, kBool };
  struct Step {
    Opcode opcode;
    std::array<int, 3> args;
  };
  std::vector<DType> inputs;
  std::vector<int32_t> constants;
  std::vector<Lane> lanes;  // of the registers
  std::vector<Step> steps;
  int result = 0;
  DType output = DType::kF32;

  std::vector<int64_t> words() const {
    std::vector<int64_t> words = {1, static_cast<int64_t>(inputs.size()), static_cast<int64_t>(constants.size())};
    words.insert(words.end(), constants.begin(), constants.end());
    words.push_back(static_cast<int64_t>(steps.size()) * 5);
    auto next = static_cast<int64_t>(inputs.size() + constants.size());
    for (const Step& step : steps) words.insert(words.end(), {step.opcode, next++, step.args[0], step.args[1], step.args[2]});
    words.push_back(result);
    return words;
  }

  double evaluate(const std::vector<double>& input) const {
    std::vector<double> r = input;
    for (size_t i = 0; i < constants.size(); ++i) {
      r.push_back(lanes[inputs.size() + i] == kFloat
                      ? std::bit_cast<float>(constants[i])
                      : -static_cast<double>(lanes[inputs.size() + i] == kBool) * constants[i] +
                            (lanes[inputs.size() + i] == kInt) * static_cast<double>(constants[i]));
    }
    for (const Step& step : steps) {
      const double a = r[static_cast<size_t>(step.args[0])], b = r[static_cast<size_t>(step.args[1])],
                   c = r[static_cast<size_t>(step.args[2])];
      switch (step.opcode) {
        case k_copy:
          r.push_back(a);
          break;
        case k_as_bf16_f:
          r.push_back(rounded(DType::kBF16, a));
          break;
        case k_add_f:
        case k_add_i:
          r.push_back(a + b);
          break;
        case k_sub_f:
        case k_sub_i:
          r.push_back(a - b);
          break;
        case k_mul_f:
        case k_mul_i:
          r.push_back(a * b);
          break;
        case k_max_f:
        case k_max_i:
          r.push_back(std::max(a, b));
          break;
        case k_min_f:
        case k_min_i:
          r.push_back(std::min(a, b));
          break;
        case k_fma_f:
          r.push_back(a * b + c);
          break;
        case k_relu_f:
          r.push_back(std::max(a, 0.0));
          break;
        case k_neg_f:
        case k_neg_i:
          r.push_back(-a);
          break;
        case k_lt_f:
        case k_lt_i:
          r.push_back(a < b);
          break;
        case k_eq_f:
        case k_eq_i:
        case k_eq_b:
          r.push_back(a == b);
          break;
        case k_and_b:
          r.push_back(a != 0 && b != 0);
          break;
        case k_not_b:
          r.push_back(a == 0);
          break;
        case k_select:
          r.push_back(a != 0 ? b : c);
          break;
        case k_f_from_i:
        case k_i_from_f:
        case k_f_from_b:
        case k_i_from_b:
          r.push_back(a);
          break;
        case k_b_from_f:
        case k_b_from_i:
          r.push_back(a != 0);
          break;
        default:
          std::abort();
      }
    }
    return r[static_cast<size_t>(result)];
  }

  static RandomProgram make(Random& random) {
    RandomProgram p;
    std::vector<double> bound;  // on the magnitude of each register
    for (int64_t n = random.integer(1, 5); n > 0; --n) {
      p.inputs.push_back(random.pick({DType::kF32, DType::kF32, DType::kF16, DType::kBF16, DType::kI32, DType::kI8, DType::kI16,
                                      DType::kU32, DType::kBool}));
      p.lanes.push_back(is_float(p.inputs.back()) ? kFloat : p.inputs.back() == DType::kBool ? kBool : kInt);
      bound.push_back(p.lanes.back() == kBool ? 1 : 4);
    }
    for (int64_t n = random.integer(0, 4); n > 0; --n) {
      p.lanes.push_back(random.pick({kFloat, kFloat, kInt, kBool}));
      const auto value = static_cast<int32_t>(random.integer(-3, 3));
      bound.push_back(3);
      p.constants.push_back(p.lanes.back() == kFloat  ? std::bit_cast<int32_t>(static_cast<float>(value))
                            : p.lanes.back() == kBool ? -(value & 1)
                                                      : value);
    }
    const auto find = [&](Lane lane) {  // a register of this lane, preferably a recent one; -1: none
      std::vector<int> found;
      for (size_t i = 0; i < p.lanes.size(); ++i) {
        if (p.lanes[i] == lane) found.push_back(static_cast<int>(i));
      }
      if (found.empty()) return -1;
      if (random.chance(0.5)) return found.back();
      return found[static_cast<size_t>(random.integer(0, std::ssize(found) - 1))];
    };
    for (int64_t n = random.integer(1, 14); n > 0; --n) {
      struct Choice {
        Opcode opcode;
        std::array<Lane, 3> args;
        int num_args;
        Lane result;
      };
      const Lane any = random.pick({kFloat, kFloat, kInt, kBool});
      const Choice choice = random.pick<Choice>({
          {k_add_f, {kFloat, kFloat}, 2, kFloat},
          {k_mul_f, {kFloat, kFloat}, 2, kFloat},
          {k_add_f, {kFloat, kFloat}, 2, kFloat},
          {k_mul_f, {kFloat, kFloat}, 2, kFloat},
          {k_sub_f, {kFloat, kFloat}, 2, kFloat},
          {k_max_f, {kFloat, kFloat}, 2, kFloat},
          {k_min_f, {kFloat, kFloat}, 2, kFloat},
          {k_max_f, {kFloat, kFloat}, 2, kFloat},
          {k_min_f, {kFloat, kFloat}, 2, kFloat},
          {k_fma_f, {kFloat, kFloat, kFloat}, 3, kFloat},
          {k_relu_f, {kFloat}, 1, kFloat},
          {k_relu_f, {kFloat}, 1, kFloat},
          {k_neg_f, {kFloat}, 1, kFloat},
          {k_lt_f, {kFloat, kFloat}, 2, kBool},
          {k_eq_f, {kFloat, kFloat}, 2, kBool},
          {k_add_i, {kInt, kInt}, 2, kInt},
          {k_sub_i, {kInt, kInt}, 2, kInt},
          {k_mul_i, {kInt, kInt}, 2, kInt},
          {k_max_i, {kInt, kInt}, 2, kInt},
          {k_min_i, {kInt, kInt}, 2, kInt},
          {k_neg_i, {kInt}, 1, kInt},
          {k_lt_i, {kInt, kInt}, 2, kBool},
          {k_eq_i, {kInt, kInt}, 2, kBool},
          {k_eq_b, {kBool, kBool}, 2, kBool},
          {k_and_b, {kBool, kBool}, 2, kBool},
          {k_not_b, {kBool}, 1, kBool},
          {k_select, {kBool, any, any}, 3, any},
          {k_copy, {any}, 1, any},
          {k_as_bf16_f, {kFloat}, 1, kFloat},
          {k_f_from_i, {kInt}, 1, kFloat},
          {k_i_from_f, {kFloat}, 1, kInt},
          {k_f_from_b, {kBool}, 1, kFloat},
          {k_i_from_b, {kBool}, 1, kInt},
          {k_b_from_f, {kFloat}, 1, kBool},
          {k_b_from_i, {kInt}, 1, kBool},
      });
      Step step = {choice.opcode, {}};
      bool complete = true;
      double sum = 0, product = 1;
      for (int i = 0; i < choice.num_args; ++i) {
        const int arg = find(choice.args[static_cast<size_t>(i)]);
        complete = complete && arg >= 0;
        if (!complete) break;
        step.args[static_cast<size_t>(i)] = arg;
        sum += bound[static_cast<size_t>(arg)];
        product *= bound[static_cast<size_t>(arg)];
      }
      const bool multiplies = choice.opcode == k_mul_f || choice.opcode == k_mul_i || choice.opcode == k_fma_f;
      const double largest = choice.result == kBool ? 1 : multiplies ? product + sum : sum;
      if (!complete || largest > 8'000'000) continue;
      p.steps.push_back(step);
      p.lanes.push_back(choice.result);
      bound.push_back(largest);
    }
    p.result =
        random.chance(0.9) ? static_cast<int>(p.lanes.size()) - 1 : static_cast<int>(random.integer(0, std::ssize(p.lanes) - 1));
    const Lane lane = p.lanes[static_cast<size_t>(p.result)];
    p.output = lane == kFloat  ? random.pick({DType::kF32, DType::kF32, DType::kF16, DType::kBF16})
               : lane == kBool ? DType::kBool
                               : random.pick({DType::kI32, DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kU32});
    return p;
  }
};

int test_random_program(Random& random) {
  const RandomProgram program = RandomProgram::make(random);
  Index shape(static_cast<size_t>(random.integer(0, 4)));
  for (int64_t& extent : shape) extent = random.integer(random.chance(0.03) ? 0 : 1, 8);
  for (int64_t& extent : shape) {
    if (random.chance(0.25)) extent = random.integer(16, 90);
    if (size_of_shape(shape) > 20000) extent = 3;
  }
  if (shape.size() == 1 && random.chance(0.5)) shape[0] = random.integer(1000, 9000);  // longer than a block
  std::vector<TypedOperand> inputs;
  for (const DType dtype : program.inputs) {
    inputs.push_back(TypedOperand::any(dtype, shape, random, 4));
    // Unsigned inputs: no negative numbers, which would be large.
    if (dtype == DType::kU32) {
      for (size_t i = 0; i < inputs.back().buffer.size(); ++i) {
        inputs.back().buffer[i] = i % 4 == 0 ? inputs.back().buffer[i] & std::byte{3} : std::byte{0};
      }
    }
  }
  return check_typed("a random program", "block", inputs, program.output, shape, program.words(), random,
                     [&](const Index& index, const std::byte* got) -> std::string {
                       std::vector<double> values;
                       for (const TypedOperand& input : inputs) values.push_back(input.at(index));
                       double wanted = rounded(program.output, program.evaluate(values));
                       const auto integer = static_cast<int64_t>(wanted);
                       switch (program.output) {  // narrowing keeps the low bits
                         case DType::kI8:
                           wanted = static_cast<int8_t>(integer);
                           break;
                         case DType::kU8:
                           wanted = static_cast<uint8_t>(integer);
                           break;
                         case DType::kI16:
                           wanted = static_cast<int16_t>(integer);
                           break;
                         case DType::kU16:
                           wanted = static_cast<uint16_t>(integer);
                           break;
                         case DType::kU32:
                           wanted = static_cast<uint32_t>(integer);
                           break;
                         default:
                           break;
                       }
                       const double value = value_of(program.output, got);
                       if (program.output == DType::kBool && std::to_integer<int>(*got) > 1)
                         return "a bool that is neither 0 nor 1";
                       return value == wanted ? "" : differs(value, wanted);
                     });
}

// NaN must pass through every fused form that the parser makes.
int test_nan_in_fusions() {
  int failures = 0;
  const int64_t zero = 0, six = std::bit_cast<int32_t>(6.0f);
  const std::vector<std::pair<const char*, std::vector<int64_t>>> programs = {
      {"relu(x * x + x)", {1, 1, 0, 15, k_mul_f, 1, 0, 0, 0, k_add_f, 2, 1, 0, 0, k_relu_f, 3, 2, 0, 0, 3}},
      {"min(max(x, 0), 6)", {1, 1, 2, zero, six, 10, k_max_f, 3, 0, 1, 0, k_min_f, 4, 3, 2, 0, 4}},
      {"min(6, max(-6, x))", {1, 1, 2, std::bit_cast<int32_t>(-6.0f), six, 10, k_max_f, 3, 1, 0, 0, k_min_f, 4, 2, 3, 0, 4}},
      {"min(relu(x + x), 6)", {1, 1, 1, six, 15, k_add_f, 2, 0, 0, 0, k_relu_f, 3, 2, 0, 0, k_min_f, 4, 3, 1, 0, 4}},
      {"min(relu(x * x + x), 6)",
       {1, 1, 1, six, 20, k_mul_f, 2, 0, 0, 0, k_add_f, 3, 2, 0, 0, k_relu_f, 4, 3, 0, 0, k_min_f, 5, 4, 1, 0, 5}},
      {"x * logistic(x)", {1, 1, 0, 10, k_logistic_f, 1, 0, 0, 0, k_mul_f, 2, 0, 1, 0, 2}},
  };
  for (const auto& [text, params] : programs) {
    for (const Target target : available_targets()) {
      std::vector<float> x(37, kNaN), y(37, 0.0f);
      const TensorView view = dense_view({37});
      const PreparedOp op = find_kernel(target, "block").prepare(OpSpec{{&view, 1}, view, params});
      const auto scratch = aligned(op.scratch_bytes);
      const void* input = x.data();
      const int32_t lo = 0, hi = 37;
      op.run(TileArgs{op.state.get(), &input, y.data(), &lo, &hi, scratch.get()});
      if (!std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); })) {
        std::fprintf(stderr, "%s loses NaN on %s\n", text, std::string(name(target)).c_str());
        ++failures;
      }
    }
  }
  return failures;
}

// Words that are nearly a program are refused, or make a program that runs inside its memory (which the sanitizers check).
int test_hostile_words(Random& random, int rounds) {
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    const RandomProgram program = RandomProgram::make(random);
    std::vector<int64_t> words = program.words();
    for (int64_t n = random.integer(1, 3); n > 0; --n) {
      int64_t& word = words[static_cast<size_t>(random.integer(0, std::ssize(words) - 1))];
      word = random.chance(0.6) ? random.integer(-2, 130) : static_cast<int64_t>(random.engine()());
    }
    if (random.chance(0.2)) words.resize(static_cast<size_t>(random.integer(0, std::ssize(words))));
    const Index shape = {3, random.integer(1, 40)};
    std::vector<TypedOperand> inputs;
    std::vector<TensorView> views;
    std::vector<const void*> pointers;
    for (const DType dtype : program.inputs) inputs.push_back(TypedOperand::any(dtype, shape, random));
    for (const TypedOperand& input : inputs) {
      views.push_back(input.view);
      pointers.push_back(input.data());
    }
    const TensorView output = dense_view(shape, program.output);
    for (const Target target : available_targets()) {
      try {
        const PreparedOp op = find_kernel(target, "block").prepare(OpSpec{views, output, words});
        const auto scratch = aligned(op.scratch_bytes);
        std::vector<std::byte> result(static_cast<size_t>(size_of_shape(shape) * size_of(program.output)));
        const int32_t lo[] = {1, 0}, hi[] = {3, static_cast<int32_t>(shape[1])};
        op.run(TileArgs{op.state.get(), pointers.data(), result.data(), lo, hi, scratch.get()});
        ++accepted;
      } catch (const GraphError&) {
      }
    }
  }
  if (accepted == 0) std::fprintf(stderr, "no mutated program was accepted: the mutations are too coarse\n");
  return accepted == 0;
}

int test_refusals() {
  int failures = 0;
  const TensorView f = dense_view({4}), i = dense_view({4}, DType::kI32), b = dense_view({4}, DType::kBool),
                   d = dense_view({4}, DType::kF64);
  const auto expect = [&](bool wanted, const std::vector<TensorView>& inputs, const TensorView& output,
                          const std::vector<int64_t>& params, const char* what) {
    if (refuses("block", inputs, output, params) != wanted) {
      std::fprintf(stderr, "%s %s\n", wanted ? "accepted" : "refused", what);
      ++failures;
    }
  };
  expect(false, {f, f}, f, {1, 2, 0, 5, k_add_f, 2, 0, 1, 0, 2}, "a right program");
  expect(true, {f, f}, f, {0}, "no program");
  expect(true, {f}, f, {1, 2, 0, 5, k_add_f, 2, 0, 1, 0, 2}, "more inputs than there are");
  expect(true, {f, f}, f, {1, 2, 0, 5, 63, 2, 0, 1, 0, 2}, "an unknown opcode");
  expect(true, {f, f}, f, {1, 2, 0, 5, k_add_f, 1, 0, 1, 0, 2}, "a write to an input");
  expect(true, {f, f}, f, {1, 2, 0, 5, k_add_f, 2, 0, 2, 0, 2}, "a register read before it is written");
  expect(true, {f, f}, f, {1, 2, 0, 5, k_add_f, 2, 0, -1, 0, 2}, "a negative register");
  expect(true, {f, f}, f, {1, 2, 0, 5, k_add_f, 2, 0, 1, 0, 3}, "a result that does not exist");
  expect(true, {f, i}, f, {1, 2, 0, 5, k_add_f, 2, 0, 1, 0, 2}, "a float sum with an integer");
  expect(true, {f, f}, i, {1, 2, 0, 5, k_add_f, 2, 0, 1, 0, 2}, "a float stored as an integer");
  expect(true, {f, f}, f, {1, 2, 0, 5, k_lt_f, 2, 0, 1, 0, 2}, "a bool stored as a float");
  expect(true, {f, f}, f, {1, 2, 0, 5, k_select, 2, 0, 1, 1, 2}, "a select by a float");
  expect(true, {b, f, i}, f, {1, 3, 0, 5, k_select, 3, 0, 1, 2, 3}, "a select of a float or an integer");
  expect(true, {b}, b, {1, 1, 1, 1, 5, k_and_b, 2, 0, 1, 0, 2}, "a bool constant that is no mask");
  expect(false, {b}, b, {1, 1, 1, -1, 5, k_and_b, 2, 0, 1, 0, 2}, "a bool constant that is a mask");
  expect(true, {}, b, {1, 0, 1, 1, 0, 0}, "a constant stored as a bool that is no mask");
  expect(true, {f}, f, {1, 1, 1, int64_t{1} << 31, 0, 0}, "a constant of more than 32 bits");
  expect(true, {d}, d, {1, 1, 0, 5, k_add_f, 1, 0, 0, 0, 1}, "float64 arithmetic");
  expect(false, {d}, d, {1, 1, 0, 0, 0}, "a copy of float64");
  expect(true, {f}, d, {1, 1, 0, 0, 0}, "a conversion to float64");
  expect(true, {f}, f, {1, 1, 0, 4, k_neg_f, 1, 0, 0, 1}, "an instruction of four words");
  expect(true, {f}, f, {1, 1, 0, 5, k_neg_f, 1, 0, 0, 0, 1, 9}, "words left over");
  expect(true, {f}, dense_view({5}), {1, 1, 0, 5, k_neg_f, 1, 0, 0, 0, 1}, "another shape");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kRounds = ASPEN_SMALL_TESTS ? 300 : 3000;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  Random random(7);
  int failures = test_nan_in_fusions() + test_refusals() + test_hostile_words(random, rounds);
  for (int round = 0; round < rounds && failures < 10; ++round) {
    Random own(static_cast<uint64_t>(round));
    failures += test_random_program(own);
  }
  std::printf("block_program_test: %d failures\n", failures);
  return failures != 0;
}
