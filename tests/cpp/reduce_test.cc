// The kernel "reduce" against a reference in double (floats), with wrapping (integers) and in logic (bools).
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "typed_case.h"

namespace {

using namespace aspen;
using namespace aspen::cpu::testing;

enum Kind : int64_t { kSum, kMax, kMin, kProduct, kAnd, kOr, kXor };

int test_random(Random& random) {
  const auto rank = static_cast<size_t>(random.integer(0, 5));
  const auto kind = static_cast<Kind>(random.integer(0, 6));
  const DType dtype = kind >= kAnd ? DType::kI32
                      : random.chance(0.6) || (kind != kMax && kind != kMin)
                          ? random.pick({DType::kF32, DType::kF32, DType::kF16, DType::kBF16, DType::kI32})
                          : DType::kBool;
  const bool floats = dtype == DType::kF32 || is_half(dtype);
  Index shape, output;
  std::vector<int64_t> params = {kind, 0};
  std::vector<bool> reduced;
  for (size_t axis = 0; axis < rank; ++axis) {
    shape.push_back(random.integer(random.chance(0.03) ? 0 : 1, 7));
    if (random.chance(0.15)) shape.back() = random.integer(60, 300);
    if (size_of_shape(shape) > 300000) shape.back() = 2;
    reduced.push_back(random.chance(0.5));
    if (reduced[axis]) {
      params.push_back(static_cast<int64_t>(axis));
      ++params[1];
    } else {
      output.push_back(shape[axis]);
    }
  }
  std::vector<TypedOperand> inputs = {TypedOperand::any(dtype, shape, random)};
  DType out_dtype = dtype;
  if (is_half(dtype) && random.chance(0.3)) out_dtype = DType::kF32;
  const bool epilogue = floats && random.chance(0.5);
  const bool to_bool = epilogue && random.chance(0.3);
  if (epilogue && !to_bool) {  // times the square of an input
    inputs.push_back(TypedOperand::any(random.pick({DType::kF32, dtype}), output, random));
    params.insert(params.end(), {1, 2, 0, 10, 41, 2, 1, 0, 0, 3, 3, 2, 0, 0, 3});
  } else if (to_bool) {  // smaller than a constant
    const float bound = 0.5f;
    params.insert(params.end(), {1, 1, 1, std::bit_cast<int32_t>(bound), 5, 36, 2, 0, 1, 0, 2});
    out_dtype = DType::kBool;
  } else {
    params.push_back(0);
  }
  return check_typed(
      "reduce of kind " + std::to_string(kind), "reduce", inputs, out_dtype, output, params, random,
      [&](const Index& index, const std::byte* got) -> std::string {
        const double infinity = std::numeric_limits<double>::infinity();
        double sum = 0, magnitude = 0, product = 1, growth = 1, decay = 1, low = infinity, high = -infinity;
        uint32_t wrapped_sum = 0, wrapped_product = 1, all = ~0u, some = 0, parity = 0;
        Index lo, hi;
        for (size_t axis = 0, kept = 0; axis < rank; ++axis) {
          lo.push_back(reduced[axis] ? 0 : index[kept]);
          hi.push_back(reduced[axis] ? shape[axis] : index[kept] + 1);
          kept += !reduced[axis];
        }
        if (size_of_shape(shape) > 0) {
          Index at = lo;
          do {
            const double v = inputs[0].at(at);
            sum += v;
            magnitude += std::abs(v);
            product *= v;
            growth *= std::max(1.0, std::abs(v));
            decay *= std::min(1.0, std::abs(v));
            low = std::min(low, v);
            high = std::max(high, v);
            if (dtype == DType::kI32) {
              const auto bits = static_cast<uint32_t>(static_cast<int32_t>(v));
              wrapped_sum += bits;
              wrapped_product *= bits;
              all &= bits;
              some |= bits;
              parity ^= bits;
            }
          } while (next(at, lo, hi));
        }
        double wanted = kind == kSum ? sum : kind == kMax ? high : kind == kMin ? low : product;
        const double value = value_of(out_dtype, got);
        if (dtype == DType::kBool) {
          if (std::to_integer<int>(*got) > 1) return "a bool that is neither 0 nor 1";
          wanted = kind == kMax ? high > 0 : low > 0;
          return value == wanted ? "" : differs(value, wanted);
        }
        if (dtype == DType::kI32) {
          if (kind == kSum) wanted = static_cast<int32_t>(wrapped_sum);
          if (kind == kProduct) wanted = static_cast<int32_t>(wrapped_product);
          if (kind >= kAnd) wanted = static_cast<int32_t>(kind == kAnd ? all : kind == kOr ? some : parity);
          wanted = std::clamp<double>(wanted, INT32_MIN, INT32_MAX);
          return value == wanted ? "" : differs(value, wanted);
        }
        // Long products may leave the range of float32 on the way.
        if (kind == kProduct && !(growth < 1e30 && decay > 1e-30)) return "";
        double scale = 1;
        if (epilogue && !to_bool) scale = inputs[1].at(index) * inputs[1].at(index);
        const double error = kind == kSum ? 2e-7 * magnitude : kind == kProduct ? 1e-4 * std::abs(product) : 0;
        if (to_bool) return value == (wanted < 0.5) || std::abs(wanted - 0.5) <= error ? "" : differs(value, wanted);
        wanted *= scale;
        if (value == rounded(out_dtype, wanted) || (std::isnan(value) && std::isnan(wanted))) return "";
        if (std::abs(value - wanted) <= error * scale + 2e-7 * std::abs(wanted) + rounding_error(out_dtype, wanted)) return "";
        return differs(value, wanted);
      });
}

// A million elements of one sign, along the last axis, along a middle axis and strided: no more than 1e-6 of the sum is lost.
int test_long_sums(Random& random) {
  constexpr int64_t kLong = 1'000'000;
  int failures = 0;
  for (int layout = 0; layout < 3; ++layout) {
    const Index shape = layout == 0 ? Index{kLong} : Index{kLong, 3};
    const auto x = layout == 2 ? TypedOperand::make(DType::kF32, shape, {0, 1}, {2, 5}, random, 0)
                               : TypedOperand::dense(DType::kF32, shape, random);
    TypedOperand positive = x;
    for (std::byte* at = positive.buffer.data(); at != positive.buffer.data() + positive.buffer.size(); at += 4) {
      float value;
      std::memcpy(&value, at, 4);
      value = std::abs(value) + 0.1f;
      std::memcpy(at, &value, 4);
    }
    const Index output = layout == 0 ? Index{} : Index{3};
    failures += check_typed("a long sum", "reduce", {positive}, DType::kF32, output, {kSum, 1, 0, 0}, random,
                            [&](const Index& index, const std::byte* got) -> std::string {
                              double sum = 0;
                              for (int64_t i = 0; i < kLong; ++i) sum += positive.at(layout == 0 ? Index{i} : Index{i, index[0]});
                              const double value = value_of(DType::kF32, got);
                              return std::abs(value - sum) <= 1e-6 * sum ? "" : differs(value, sum);
                            });
  }
  return failures;
}

// Infinities in one piece of a long sum must not turn into NaN in the compensation of the next.
int test_special_values(Random& random) {
  int failures = 0;
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float special : {infinity, -infinity, nan}) {
    for (const Index& shape : {Index{20000}, Index{5000, 20}}) {
      for (const Kind kind : {kSum, kMax, kMin}) {
        TypedOperand x = TypedOperand::dense(DType::kF32, shape, random);
        std::memcpy(x.buffer.data() + 4 * (x.buffer.size() / 12), &special, 4);
        const Index output = shape.size() == 1 ? Index{} : Index{20};
        const auto column = static_cast<int64_t>(x.buffer.size() / 12) % 20;
        failures += check_typed("special values", "reduce", {x}, DType::kF32, output, {kind, 1, 0, 0}, random,
                                [&](const Index& index, const std::byte* got) -> std::string {
                                  const double value = value_of(DType::kF32, got);
                                  if (!index.empty() && index[0] != column) return std::isfinite(value) ? "" : differs(value, 0);
                                  if (std::isnan(special)) return std::isnan(value) ? "" : differs(value, special);
                                  const bool decides = kind == kSum || (kind == kMax) == (special > 0);
                                  return (decides ? value == special : std::isfinite(value)) ? "" : differs(value, special);
                                });
      }
    }
  }
  return failures;
}

int test_refusals() {
  int failures = 0;
  const auto expect = [&](bool wanted, DType dtype, const Index& output, const std::vector<int64_t>& params, const char* what) {
    if (refuses("reduce", {dense_view({2, 3, 4}, dtype)}, dense_view(output, dtype), params) != wanted) {
      std::fprintf(stderr, "%s %s\n", wanted ? "accepted" : "refused", what);
      ++failures;
    }
  };
  expect(false, DType::kF32, {2, 4}, {kSum, 1, 1, 0}, "a right reduction");
  expect(true, DType::kF32, {2, 3}, {kSum, 1, 1, 0}, "a wrong output shape");
  expect(true, DType::kF32, {2}, {kSum, 1, 1, 0}, "a short output shape");
  expect(true, DType::kF32, {2, 4, 1}, {kSum, 1, 1, 0}, "a long output shape");
  expect(true, DType::kF32, {2, 4}, {kSum, 1, 3, 0}, "an axis out of range");
  expect(true, DType::kF32, {2, 4}, {kSum, 1, -2, 0}, "a negative axis");
  expect(true, DType::kF32, {2}, {kSum, 2, 2, 1, 0}, "axes that descend");
  expect(true, DType::kF32, {2, 4}, {kSum, 2, 1, 1, 0}, "an axis twice");
  expect(true, DType::kF32, {2, 4}, {4, 1, 1, 0}, "an unknown kind");
  expect(true, DType::kF32, {2, 4}, {kSum, INT64_MAX, 1, 0}, "a list longer than the words");
  expect(true, DType::kBool, {2, 4}, {kSum, 1, 1, 0}, "a sum of bools");
  expect(true, DType::kF64, {2, 4}, {kSum, 1, 1, 0}, "float64");
  expect(true, DType::kF32, {2, 4}, {kSum, 1, 1}, "no mark of an epilogue");
  expect(true, DType::kF32, {2, 4}, {kSum, 1, 1, 0, 7}, "words left over");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kRounds = ASPEN_SMALL_TESTS ? 150 : 1000;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  Random random(1);
  int failures = test_refusals() + test_long_sums(random) + test_special_values(random);
  for (int round = 0; round < rounds && failures < 10; ++round) {
    Random own(static_cast<uint64_t>(round));
    failures += test_random(own);
  }
  std::printf("reduce_test: %d failures\n", failures);
  return failures != 0;
}
