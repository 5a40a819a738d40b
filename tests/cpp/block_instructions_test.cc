// Block programs: the accuracy and special values of each instruction.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "block_opcodes.h"
#include "cuda/kernels/scalar.h"
#include "typed_case.h"

namespace {

using namespace aspen;
using aspen::cpu::available_targets;
using aspen::cpu::Target;
using namespace aspen::cpu::testing;

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

// What a lane holds of a stored value, and the value of a lane, as loads and stores of generated code have them.
uint32_t widened(DType dtype, uint32_t stored) {
  if (dtype == DType::kBool) return cuda::scalar::mask(stored != 0);
  return is_half(dtype) ? std::bit_cast<uint32_t>(static_cast<float>(half_value(dtype, static_cast<uint16_t>(stored)))) : stored;
}
uint32_t narrowed(DType dtype, uint32_t lane) {
  if (dtype == DType::kBool) return lane & 1;
  return is_half(dtype) ? half_bits(dtype, std::bit_cast<float>(lane)) : lane;
}

// `apply` with the functions that generated CUDA code calls.
std::vector<uint32_t> apply_scalars(int64_t opcode, const std::vector<DType>& dtypes, DType out_dtype,
                                    const std::vector<std::vector<uint32_t>>& args) {
  std::vector<uint32_t> lanes(args[0].size());
  for (size_t k = 0; k < lanes.size(); ++k) {
    const auto arg = [&](size_t i) { return widened(dtypes[i], args[i][k]); };
    const auto call = [&](auto function) {
      if constexpr (std::is_invocable_v<decltype(function), uint32_t, uint32_t, uint32_t>) {
        return function(arg(0), arg(1), arg(2));
      } else if constexpr (std::is_invocable_v<decltype(function), uint32_t, uint32_t>) {
        return function(arg(0), arg(1));
      } else {
        return function(arg(0));
      }
    };
    switch (opcode) {
#define ASPEN_BLOCK_OP(name, number, count)                    \
  case number:                                                 \
    lanes[k] = narrowed(out_dtype, call(&cuda::scalar::name)); \
    break;
#include "cpu/block_ops.inc"
#undef ASPEN_BLOCK_OP
    }
  }
  return lanes;
}

// Who computes instructions: each CPU target, and the code for CUDA on the host.
struct Side {
  std::string name;
  std::function<std::vector<uint32_t>(int64_t opcode, const std::vector<DType>& dtypes, DType out_dtype,
                                      const std::vector<std::vector<uint32_t>>& args)>
      apply;
  bool has_library_functions = false;

  // What a function of at most so many ulp may have here: 4 where it is the C library's and not rounded correctly.
  double bound(double ulps) const { return has_library_functions && ulps > 0.505 ? std::max(ulps, 4.0) : ulps; }
};

std::vector<Side> sides() {
  std::vector<Side> all;
  for (const Target target : available_targets()) {
    all.push_back({std::string(name(target)), std::bind_front(apply, target)});
  }
  all.push_back({"cuda", apply_scalars, true});
  return all;
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
double relu(double x) { return x <= 0 ? 0 : x; }  // of -0 it is 0, the greater
// By Newton's method with Halley's correction from a first guess that is right to 1%; 1 - erf_inv's argument is exact.
double erf_inv(double x) {
  if (!(std::abs(x) < 1)) return std::abs(x) == 1 ? std::copysign(kInf, x) : kNaN;
  const double log = std::log1p(-x * x), half = 2 / (3.141592653589793 * 0.147) + log / 2;
  double a = std::sqrt(std::sqrt(half * half - log / 0.147) - half);
  if (std::abs(x) < 1e-6) return x * 0.886226925452758;
  for (int i = 0; i < 4; ++i) {
    const double over = std::abs(x) < 0.5 ? std::erf(a) - std::abs(x) : (1 - std::abs(x)) - std::erfc(a);
    const double step = over / (1.1283791670955126 * std::exp(-a * a));
    a -= step / (1 + a * step);
  }
  return std::copysign(a, x);
}

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
    {"erfc", k_erfc_f, [](double x) { return std::erfc(x); }, 4.5},
    {"sin", k_sin_f, [](double x) { return std::sin(x); }, 0.51},
    {"cos", k_cos_f, [](double x) { return std::cos(x); }, 0.51},
    {"tan", k_tan_f, [](double x) { return std::tan(x); }, 0.51},
    {"sinh", k_sinh_f, [](double x) { return std::sinh(x); }, 0.51},
    {"cosh", k_cosh_f, [](double x) { return std::cosh(x); }, 0.51},
    {"asin", k_asin_f, [](double x) { return std::asin(x); }, 0.51},
    {"acos", k_acos_f, [](double x) { return std::acos(x); }, 0.51},
    {"atan", k_atan_f, [](double x) { return std::atan(x); }, 0.51},
    {"asinh", k_asinh_f, [](double x) { return std::asinh(x); }, 0.51},
    {"acosh", k_acosh_f, [](double x) { return std::acosh(x); }, 0.51},
    {"atanh", k_atanh_f, [](double x) { return std::atanh(x); }, 0.51},
    {"erf_inv", k_erf_inv_f, erf_inv, 0.55},
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
  for (const Side& side : sides()) {
    for (const Function& function : kFunctions) {
      const auto result = side.apply(function.opcode, {DType::kF32}, DType::kF32, {lanes});
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
      std::printf("%-9s %-11s %.3f ulp at %g\n", side.name.c_str(), function.name, worst, where);
      if (!(worst <= side.bound(function.bound))) {
        std::fprintf(stderr, "%s(%.9g) is %.9g: %g ulp, over %g, on %s\n", function.name, where, got, worst, function.bound,
                     side.name.c_str());
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
    {"atan2", k_atan2_f, [](double a, double b) { return std::atan2(a, b); }, 0.51},
    {"nextafter", k_nextafter_f, [](double a, double b) -> double { return std::nextafterf(float(a), float(b)); }, 0},
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
  for (const Side& side : sides()) {
    for (const BinaryFunction& function : kBinaryFunctions) {
      const auto result = side.apply(function.opcode, {DType::kF32, DType::kF32}, DType::kF32, {a, b});
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
      std::printf("%-9s %-11s %.3f ulp at %g, %g\n", side.name.c_str(), function.name, worst, where[0], where[1]);
      if (!(worst <= side.bound(function.bound))) {
        std::fprintf(stderr, "%s(%.9g, %.9g) is %.9g: %g ulp, over %g, on %s\n", function.name, where[0], where[1], where[2],
                     worst, function.bound, side.name.c_str());
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
      {"popcount_i", k_popcount_i, {I}, I, [](U a, U, U) -> U { return std::popcount(a); }},
      {"clz_i", k_clz_i, {I}, I, [](U a, U, U) -> U { return std::countl_zero(a); }},
      {"as_i8_i", k_as_i8_i, {I}, I, [](U a, U, U) { return static_cast<U>(static_cast<int8_t>(a)); }},
      {"as_i16_i", k_as_i16_i, {I}, I, [](U a, U, U) { return static_cast<U>(static_cast<int16_t>(a)); }},
      {"as_u8_i", k_as_u8_i, {I}, I, [](U a, U, U) { return a & 0xff; }},
      {"as_u16_i", k_as_u16_i, {I}, I, [](U a, U, U) { return a & 0xffff; }},
      {"div_u", k_div_u, {I, I}, I, [](U a, U b, U) { return b == 0 ? ~U{0} : a / b; }},
      {"rem_u", k_rem_u, {I, I}, I, [](U a, U b, U) { return b == 0 ? a : a % b; }},
      {"max_u", k_max_u, {I, I}, I, [](U a, U b, U) { return a > b ? a : b; }},
      {"min_u", k_min_u, {I, I}, I, [](U a, U b, U) { return a < b ? a : b; }},
      {"lt_u", k_lt_u, {I, I}, B, [](U a, U b, U) -> U { return a < b; }},
      {"le_u", k_le_u, {I, I}, B, [](U a, U b, U) -> U { return a <= b; }},
      {"gt_u", k_gt_u, {I, I}, B, [](U a, U b, U) -> U { return a > b; }},
      {"ge_u", k_ge_u, {I, I}, B, [](U a, U b, U) -> U { return a >= b; }},
      {"u_from_f",
       k_u_from_f,
       {F},
       I,
       [=](U a, U, U) -> U {
         if (!(f(a) > 0)) return 0;
         return f(a) >= 0x1p32f ? ~U{0} : static_cast<U>(f(a));
       }},
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
      {"f_bits_i", k_f_bits_i, {I}, F, [](U a, U, U) { return a; }},
      {"i_bits_f", k_i_bits_f, {F}, I, [](U a, U, U) { return a; }},
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
    for (const Side& side : sides()) {
      const auto result = side.apply(function.opcode, function.args, function.result, args);
      for (size_t i = 0; i < result.size(); ++i) {
        const auto arg = [&](size_t k) { return k < args.size() ? args[k][i] : 0; };
        const uint32_t wanted = function.reference(arg(0), arg(1), arg(2));
        if (result[i] == wanted) continue;
        std::fprintf(stderr, "%s(%#x, %#x, %#x) is %#x, not %#x, on %s\n", function.name, arg(0), arg(1), arg(2), result[i],
                     wanted, side.name.c_str());
        ++failures;
        break;
      }
    }
  }
  return failures;
}

// Every 16-bit float to float32; and to 16 bits what lies at, between and just beside neighbours, and anything.
int test_conversions() {
  int failures = 0;
  Random random(5);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint32_t> halves, floats;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      halves.push_back(bits);
      const double value = half_value(dtype, static_cast<uint16_t>(bits)),
                   next = half_value(dtype, static_cast<uint16_t>(bits + 1));
      const auto middle = static_cast<float>((value + next) / 2);
      for (const float x :
           {static_cast<float>(value), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2 * middle)}) {
        floats.push_back(std::bit_cast<uint32_t>(x));
      }
      floats.push_back(static_cast<uint32_t>(random.engine()()));
    }
    for (const Side& side : sides()) {
      const auto wide = side.apply(k_copy, {dtype}, DType::kF32, {halves});
      const auto narrow = side.apply(k_copy, {DType::kF32}, dtype, {floats});
      const auto in_lanes = side.apply(dtype == DType::kF16 ? k_as_f16_f : k_as_bf16_f, {DType::kF32}, DType::kF32, {floats});
      const auto expect = [&](double got, double wanted, double of) {
        if (got == wanted || (std::isnan(got) && std::isnan(wanted))) return;
        if (failures++ < 5) {
          std::fprintf(stderr, "%g became %g, not %g, on %s\n", of, got, wanted, side.name.c_str());
        }
      };
      for (size_t i = 0; i < halves.size(); ++i) {
        const double value = half_value(dtype, static_cast<uint16_t>(halves[i]));
        expect(std::bit_cast<float>(wide[i]), value, value);
      }
      for (size_t i = 0; i < floats.size(); ++i) {
        const auto x = std::bit_cast<float>(floats[i]);
        expect(half_value(dtype, static_cast<uint16_t>(narrow[i])), rounded(dtype, x), x);
        expect(std::bit_cast<float>(in_lanes[i]), rounded(dtype, x), x);
      }
    }
  }
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kRounds = ASPEN_SMALL_TESTS ? 300 : 3000;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  Random random(7);
  const int failures = test_functions(static_cast<uint32_t>(60'000'000 / rounds) | 1) +
                       test_binary_functions(random, 20 * rounds) + test_exact_functions(random) + test_conversions();
  std::printf("block_instructions_test: %d failures\n", failures);
  return failures != 0;
}
