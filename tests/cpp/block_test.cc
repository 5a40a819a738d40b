// Block programs: the accuracy and special values of each instruction, random programs on random views, and hostile words.
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "typed_case.h"

namespace {

using namespace aspen;
using aspen::cpu::available_targets;
using aspen::cpu::Target;
using namespace aspen::cpu::testing;

enum Opcode : int64_t {
#define ASPEN_BLOCK_OP(name, number, args) k_##name = number,
#include "cpu/block_ops.inc"
#undef ASPEN_BLOCK_OP
};

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kMinInt = std::numeric_limits<int32_t>::min();
constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

// Applies one instruction to lists of 32-bit lanes and returns the lanes of the result; bools are bytes.
std::vector<uint32_t> apply(Target target, int64_t opcode, const std::vector<DType>& dtypes, DType out_dtype,
                            const std::vector<std::vector<uint32_t>>& args) {
  const auto size = static_cast<int64_t>(args[0].size());
  const auto count = static_cast<int64_t>(args.size());
  std::vector<TensorView> views;
  std::vector<std::vector<std::byte>> data;
  std::vector<const void*> pointers;
  std::vector<int64_t> params = {1, count, 0, 5, opcode, count, 0, count > 1 ? 1 : 0, count > 2 ? 2 : 0, count};
  for (size_t i = 0; i < args.size(); ++i) {
    views.push_back(dense_view({size}, dtypes[i]));
    const auto bytes = static_cast<size_t>(size_of(dtypes[i]));
    std::vector<std::byte>& buffer = data.emplace_back(args[i].size() * bytes);
    for (size_t k = 0; k < args[i].size(); ++k) std::memcpy(buffer.data() + k * bytes, &args[i][k], bytes);
  }
  for (const auto& buffer : data) pointers.push_back(buffer.data());
  const TensorView output = dense_view({size}, out_dtype);
  const PreparedOp op = find_kernel(target, "block").prepare(OpSpec{views, output, params});
  const auto scratch = aligned(op.scratch_bytes);
  const auto bytes = static_cast<size_t>(size_of(out_dtype));
  std::vector<std::byte> result(args[0].size() * bytes);
  const int32_t lo = 0, hi = static_cast<int32_t>(size);
  op.run(TileArgs{op.state.get(), pointers.data(), result.data(), &lo, &hi, scratch.get()});
  std::vector<uint32_t> lanes(args[0].size());
  for (size_t k = 0; k < lanes.size(); ++k) std::memcpy(&lanes[k], result.data() + k * bytes, bytes);
  return lanes;
}

// The distance in units of the last place of the float nearest to `wanted`.
double ulps(float got, double wanted) {
  if (std::isnan(wanted)) return std::isnan(got) ? 0 : kInf;
  const auto nearest = static_cast<float>(wanted);
  if (got == nearest) return std::signbit(got) == std::signbit(nearest) ? 0 : kInf;  // tells -0 from 0
  if (std::isnan(got)) return kInf;
  if (std::isinf(nearest) || std::isinf(got)) {  // one rounding may reach infinity where the other does not
    const double limit = static_cast<double>(std::numeric_limits<float>::max());
    return std::abs(std::clamp<double>(got, -2 * limit, 2 * limit) - std::clamp(wanted, -2 * limit, 2 * limit)) /
           std::ldexp(1.0, 104);
  }
  const int exponent = std::max(std::ilogb(nearest == 0 ? std::numeric_limits<float>::denorm_min() : nearest), -126);
  return std::abs(got - wanted) / std::ldexp(1.0, exponent - 23);
}

struct Function {
  const char* name;
  Opcode opcode;
  double (*reference)(double);
  double bound;          // in ulp
  bool flushes = false;  // results below the normal range may be zero
};

double half_away(double x) { return std::round(x); }
double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
double relu(double x) { return x < 0 ? 0 : x; }

const Function kFunctions[] = {
    {"neg", k_neg_f, [](double x) { return -x; }, 0},
    {"abs", k_abs_f, [](double x) { return std::abs(x); }, 0},
    {"sign", k_sign_f, sign, 0},
    {"floor", k_floor_f, [](double x) { return std::floor(x); }, 0},
    {"ceil", k_ceil_f, [](double x) { return std::ceil(x); }, 0},
    {"round", k_round_f, half_away, 0},
    {"round_even", k_round_even_f, [](double x) { return std::nearbyint(x); }, 0},
    {"sqrt", k_sqrt_f, [](double x) { return std::sqrt(x); }, 0.5001},
    {"rsqrt", k_rsqrt_f, [](double x) { return 1 / std::sqrt(x); }, 1.5},
    {"cbrt", k_cbrt_f, [](double x) { return std::cbrt(x); }, 0.51},
    {"exp", k_exp_f, [](double x) { return std::exp(x); }, 1.5},
    {"exp2", k_exp2_f, [](double x) { return std::exp2(x); }, 1.5},
    {"expm1", k_expm1_f, [](double x) { return std::expm1(x); }, 2},
    {"log", k_log_f, [](double x) { return std::log(x); }, 1.5},
    {"log1p", k_log1p_f, [](double x) { return std::log1p(x); }, 2},
    {"tanh", k_tanh_f, [](double x) { return std::tanh(x); }, 3},
    {"logistic", k_logistic_f, [](double x) { return 1 / (1 + std::exp(-x)); }, 2.5, true},
    {"erf", k_erf_f, [](double x) { return std::erf(x); }, 2},
    {"erfc", k_erfc_f, [](double x) { return std::erfc(x); }, 1},
    {"sin", k_sin_f, [](double x) { return std::sin(x); }, 0.51},
    {"cos", k_cos_f, [](double x) { return std::cos(x); }, 0.51},
    {"tan", k_tan_f, [](double x) { return std::tan(x); }, 0.51},
    {"relu", k_relu_f, relu, 0},
    {"square", k_square_f, [](double x) { return x * x; }, 0.5001},
};

const float kSpecial[] = {0.0f,
                          -0.0f,
                          1.0f,
                          -1.0f,
                          0.5f,
                          -0.5f,
                          1.5f,
                          -1.5f,
                          2.5f,
                          -2.5f,
                          0.4999999701976776f,
                          8388607.5f,
                          8388608.0f,
                          16777216.0f,
                          -16777217.0f,
                          2147483648.0f,
                          -2147483648.0f,
                          kInf,
                          -kInf,
                          kNaN,
                          1e-45f,
                          -1e-45f,
                          1.1754942e-38f,
                          1.17549435e-38f,
                          3.4028235e38f,
                          -3.4028235e38f,
                          88.72283f,
                          88.7229f,
                          -87.33655f,
                          -103.97208f,
                          -103.98f,
                          127.99999f,
                          128.0f,
                          -149.0f,
                          -149.5f,
                          -150.0f,
                          10.0f,
                          -10.0f,
                          20.0f,
                          -20.0f,
                          1e-20f,
                          -1e-20f,
                          0.99999994f,
                          1.0000001f,
                          -0.99999994f};

// Every function over all exponents and signs: all special values and a comb through the 2^32 floats.
int test_functions(uint32_t stride) {
  std::vector<uint32_t> lanes;
  for (const float special : kSpecial) lanes.push_back(std::bit_cast<uint32_t>(special));
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += stride) lanes.push_back(static_cast<uint32_t>(bits));
  // And densely where functions cross from one formula to the next, or are steep.
  for (float x = -120; x < 120; x += 0.0037f) lanes.push_back(std::bit_cast<uint32_t>(x));
  for (float x = -1.2f; x < 1.2f; x += 0.00003f) lanes.push_back(std::bit_cast<uint32_t>(x));
  int failures = 0;
  for (const Target target : available_targets()) {
    for (const Function& function : kFunctions) {
      const auto result = apply(target, function.opcode, {DType::kF32}, DType::kF32, {lanes});
      double worst = 0;
      float where = 0, got = 0;
      for (size_t i = 0; i < lanes.size(); ++i) {
        const auto x = std::bit_cast<float>(lanes[i]);
        const auto y = std::bit_cast<float>(result[i]);
        const double wanted = function.reference(x);
        if (function.flushes && y == 0 && std::abs(wanted) < std::numeric_limits<float>::min()) continue;
        const double error = ulps(y, wanted);
        if (error > worst) {
          worst = error;
          where = x;
          got = y;
        }
      }
      std::printf("%-9s %-11s %.3f ulp at %g\n", std::string(name(target)).c_str(), function.name, worst, where);
      if (!(worst <= function.bound)) {
        std::fprintf(stderr, "%s(%.9g) is %.9g: %g ulp, over %g, on %s\n", function.name, where, got, worst, function.bound,
                     std::string(name(target)).c_str());
        ++failures;
      }
    }
  }
  return failures;
}

struct BinaryFunction {
  const char* name;
  Opcode opcode;
  double (*reference)(double, double);
  double bound;
};

const BinaryFunction kBinaryFunctions[] = {
    {"add", k_add_f, [](double a, double b) { return a + b; }, 0.5001},
    {"sub", k_sub_f, [](double a, double b) { return a - b; }, 0.5001},
    {"mul", k_mul_f, [](double a, double b) { return a * b; }, 0.5001},
    {"div", k_div_f, [](double a, double b) { return a / b; }, 0.5001},
    {"max", k_max_f, [](double a, double b) { return std::isnan(a) || a > b ? a : b; }, 0},
    {"min", k_min_f, [](double a, double b) { return std::isnan(a) || a < b ? a : b; }, 0},
    {"rem", k_rem_f, [](double a, double b) { return std::fmod(a, b); }, 0},
    {"pow", k_pow_f, [](double a, double b) { return std::pow(a, b); }, 0.51},
    {"atan2", k_atan2_f, [](double a, double b) { return std::atan2(a, b); }, 1.5},
};

int test_binary_functions(Random& random, int count) {
  std::vector<uint32_t> a, b;
  const auto add = [&](float x, float y) {
    a.push_back(std::bit_cast<uint32_t>(x));
    b.push_back(std::bit_cast<uint32_t>(y));
  };
  for (const float x : kSpecial) {
    for (const float y : kSpecial) add(x, y);
    for (const float y : {2.0f, 3.0f, -3.0f, 0.33333334f, 16777215.0f}) add(x, y);
  }
  for (int i = 0; i < count; ++i) {
    add(std::bit_cast<float>(static_cast<uint32_t>(random.engine()())),
        std::bit_cast<float>(static_cast<uint32_t>(random.engine()())));
    add(std::exp(3 * random.normal()), 10 * random.normal());
    add(1 + 1e-3f * random.normal(), 1e4f * random.normal());
    add(random.normal(), static_cast<float>(random.integer(-20, 20)));
  }
  int failures = 0;
  for (const Target target : available_targets()) {
    for (const BinaryFunction& function : kBinaryFunctions) {
      const auto result = apply(target, function.opcode, {DType::kF32, DType::kF32}, DType::kF32, {a, b});
      double worst = 0;
      std::array<float, 3> where = {};
      for (size_t i = 0; i < a.size(); ++i) {
        const std::array<float, 3> at = {std::bit_cast<float>(a[i]), std::bit_cast<float>(b[i]), std::bit_cast<float>(result[i])};
        const bool is_extremum = function.opcode == k_max_f || function.opcode == k_min_f;
        if (is_extremum && at[0] == at[1]) continue;  // either zero will do
        const double error = ulps(at[2], function.reference(at[0], at[1]));
        if (error > worst) {
          worst = error;
          where = at;
        }
      }
      std::printf("%-9s %-11s %.3f ulp at %g, %g\n", std::string(name(target)).c_str(), function.name, worst, where[0], where[1]);
      if (!(worst <= function.bound)) {
        std::fprintf(stderr, "%s(%.9g, %.9g) is %.9g: %g ulp, over %g, on %s\n", function.name, where[0], where[1], where[2],
                     worst, function.bound, std::string(name(target)).c_str());
        ++failures;
      }
    }
  }
  return failures;
}

// Instructions with one right answer, on lanes of integers, bools and floats: from 32 bits each to 32 bits (or to 0 and 1).
struct ExactFunction {
  const char* name;
  Opcode opcode;
  std::vector<DType> args;
  DType result;
  std::function<uint32_t(uint32_t, uint32_t, uint32_t)> reference;
};

std::vector<ExactFunction> exact_functions() {
  using U = uint32_t;
  const auto I = DType::kI32, F = DType::kF32, B = DType::kBool;
  const auto i = [](U bits) { return static_cast<int32_t>(bits); };
  const auto f = [](U bits) { return std::bit_cast<float>(bits); };
  const auto bits = [](float x) { return std::bit_cast<U>(x); };
  return {
      {"copy", k_copy, {I}, I, [](U a, U, U) { return a; }},
      {"add_i", k_add_i, {I, I}, I, [](U a, U b, U) { return a + b; }},
      {"sub_i", k_sub_i, {I, I}, I, [](U a, U b, U) { return a - b; }},
      {"mul_i", k_mul_i, {I, I}, I, [](U a, U b, U) { return a * b; }},
      {"div_i",
       k_div_i,
       {I, I},
       I,
       [=](U a, U b, U) -> U { return b == 0       ? -1
                                      : b == ~U{0} ? 0 - a
                                                   : static_cast<U>(i(a) / i(b)); }},
      {"rem_i", k_rem_i, {I, I}, I, [=](U a, U b, U) -> U { return b == 0       ? a
                                                                   : b == ~U{0} ? 0
                                                                                : static_cast<U>(i(a) % i(b)); }},
      {"max_i", k_max_i, {I, I}, I, [=](U a, U b, U) { return i(a) > i(b) ? a : b; }},
      {"min_i", k_min_i, {I, I}, I, [=](U a, U b, U) { return i(a) < i(b) ? a : b; }},
      {"neg_i", k_neg_i, {I}, I, [](U a, U, U) { return 0 - a; }},
      {"abs_i", k_abs_i, {I}, I, [=](U a, U, U) { return i(a) < 0 ? 0 - a : a; }},
      {"sign_i", k_sign_i, {I}, I, [=](U a, U, U) -> U { return i(a) > 0   ? 1
                                                                : i(a) < 0 ? ~U{0}
                                                                           : 0; }},
      {"and_i", k_and_i, {I, I}, I, [](U a, U b, U) { return a & b; }},
      {"or_i", k_or_i, {I, I}, I, [](U a, U b, U) { return a | b; }},
      {"xor_i", k_xor_i, {I, I}, I, [](U a, U b, U) { return a ^ b; }},
      {"not_i", k_not_i, {I}, I, [](U a, U, U) { return ~a; }},
      {"shl_i", k_shl_i, {I, I}, I, [](U a, U b, U) { return b > 31 ? 0 : a << b; }},
      {"shra_i", k_shra_i, {I, I}, I, [=](U a, U b, U) { return static_cast<U>(i(a) >> (b > 31 ? 31 : b)); }},
      {"shrl_i", k_shrl_i, {I, I}, I, [](U a, U b, U) { return b > 31 ? 0 : a >> b; }},
      {"eq_i", k_eq_i, {I, I}, B, [](U a, U b, U) -> U { return a == b; }},
      {"ne_i", k_ne_i, {I, I}, B, [](U a, U b, U) -> U { return a != b; }},
      {"lt_i", k_lt_i, {I, I}, B, [=](U a, U b, U) -> U { return i(a) < i(b); }},
      {"le_i", k_le_i, {I, I}, B, [=](U a, U b, U) -> U { return i(a) <= i(b); }},
      {"gt_i", k_gt_i, {I, I}, B, [=](U a, U b, U) -> U { return i(a) > i(b); }},
      {"ge_i", k_ge_i, {I, I}, B, [=](U a, U b, U) -> U { return i(a) >= i(b); }},
      {"and_b", k_and_b, {B, B}, B, [](U a, U b, U) { return a & b; }},
      {"or_b", k_or_b, {B, B}, B, [](U a, U b, U) { return a | b; }},
      {"xor_b", k_xor_b, {B, B}, B, [](U a, U b, U) { return a ^ b; }},
      {"not_b", k_not_b, {B}, B, [](U a, U, U) { return 1 - a; }},
      {"eq_b", k_eq_b, {B, B}, B, [](U a, U b, U) -> U { return a == b; }},
      {"ne_b", k_ne_b, {B, B}, B, [](U a, U b, U) -> U { return a != b; }},
      {"select", k_select, {B, I, I}, I, [](U a, U b, U c) { return a != 0 ? b : c; }},
      {"eq_f", k_eq_f, {F, F}, B, [=](U a, U b, U) -> U { return f(a) == f(b); }},
      {"ne_f", k_ne_f, {F, F}, B, [=](U a, U b, U) -> U { return f(a) != f(b); }},
      {"lt_f", k_lt_f, {F, F}, B, [=](U a, U b, U) -> U { return f(a) < f(b); }},
      {"le_f", k_le_f, {F, F}, B, [=](U a, U b, U) -> U { return f(a) <= f(b); }},
      {"gt_f", k_gt_f, {F, F}, B, [=](U a, U b, U) -> U { return f(a) > f(b); }},
      {"ge_f", k_ge_f, {F, F}, B, [=](U a, U b, U) -> U { return f(a) >= f(b); }},
      {"is_finite_f", k_is_finite_f, {F}, B, [=](U a, U, U) -> U { return std::isfinite(f(a)); }},
      {"f_from_i", k_f_from_i, {I}, F, [=](U a, U, U) { return bits(static_cast<float>(i(a))); }},
      {"f_from_u", k_f_from_u, {DType::kU32}, F, [=](U a, U, U) { return bits(static_cast<float>(a)); }},
      {"f_from_b", k_f_from_b, {B}, F, [=](U a, U, U) { return bits(static_cast<float>(a)); }},
      {"i_from_f",
       k_i_from_f,
       {F},
       I,
       [=](U a, U, U) -> U {
         const double x = f(a);
         return std::isnan(x) ? 0 : static_cast<U>(static_cast<int32_t>(std::clamp<double>(x, kMinInt, kMaxInt)));
       }},
      {"i_from_b", k_i_from_b, {B}, I, [](U a, U, U) { return a; }},
      {"b_from_f", k_b_from_f, {F}, B, [=](U a, U, U) -> U { return f(a) != 0; }},
      {"b_from_i", k_b_from_i, {I}, B, [](U a, U, U) -> U { return a != 0; }},
  };
}

int test_exact_functions(Random& random) {
  const std::vector<uint32_t> ints = {0,  1,   2,   3,           7,           31,          32,    33,
                                      64, ~0u, ~1u, 0x80000000u, 0x80000001u, 0x7fffffffu, 12345, 0xffff8000u};
  int failures = 0;
  for (const ExactFunction& function : exact_functions()) {
    std::vector<std::vector<uint32_t>> args(function.args.size());
    for (int i = 0; i < 4000; ++i) {
      for (size_t arg = 0; arg < args.size(); ++arg) {
        uint32_t lane = random.chance(0.5) ? static_cast<uint32_t>(random.engine()())
                                           : ints[static_cast<size_t>(random.integer(0, static_cast<int64_t>(ints.size()) - 1))];
        if (function.args[arg] == DType::kBool) lane &= 1;
        if (function.args[arg] == DType::kF32 && random.chance(0.5)) {
          lane = std::bit_cast<uint32_t>(kSpecial[static_cast<size_t>(random.integer(0, std::ssize(kSpecial) - 1))]);
        }
        if (arg == 1 && random.chance(0.1) && function.args[0] == function.args[1]) lane = args[0].back();
        args[arg].push_back(lane);
      }
    }
    for (const Target target : available_targets()) {
      const auto result = apply(target, function.opcode, function.args, function.result, args);
      for (size_t i = 0; i < result.size(); ++i) {
        const auto arg = [&](size_t k) { return k < args.size() ? args[k][i] : 0; };
        const uint32_t wanted = function.reference(arg(0), arg(1), arg(2));
        if (result[i] == wanted) continue;
        std::fprintf(stderr, "%s(%#x, %#x, %#x) is %#x, not %#x, on %s\n", function.name, arg(0), arg(1), arg(2), result[i],
                     wanted, std::string(name(target)).c_str());
        ++failures;
        break;
      }
    }
  }
  return failures;
}

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
      p.inputs.push_back(
          random.pick({DType::kF32, DType::kF32, DType::kF32, DType::kI32, DType::kI8, DType::kI16, DType::kU32, DType::kBool}));
      p.lanes.push_back(p.inputs.back() == DType::kF32 ? kFloat : p.inputs.back() == DType::kBool ? kBool : kInt);
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
    p.output = lane == kFloat  ? DType::kF32
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
                       double wanted = program.evaluate(values);
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
#ifdef ASPEN_SMALL_TESTS
  constexpr int kRounds = 300;
#else
  constexpr int kRounds = 3000;
#endif
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  Random random(7);
  int failures = test_functions(static_cast<uint32_t>(60'000'000 / rounds) | 1) + test_binary_functions(random, 20 * rounds) +
                 test_exact_functions(random) + test_nan_in_fusions() + test_refusals() + test_hostile_words(random, rounds);
  for (int round = 0; round < rounds && failures < 10; ++round) {
    Random own(static_cast<uint64_t>(round));
    failures += test_random_program(own);
  }
  std::printf("block_test: %d failures\n", failures);
  return failures != 0;
}
