// The kernels that only move elements: concatenate, pad, and block programs that copy.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "typed_case.h"

namespace {

using namespace aspen;
using namespace aspen::cpu::testing;

constexpr DType kDTypes[] = {DType::kBool, DType::kI8,  DType::kI16, DType::kI32,  DType::kI64, DType::kU8, DType::kU16,
                             DType::kU32,  DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

Index random_shape(Random& random, int64_t min_rank, int64_t max_rank, int64_t max_extent) {
  Index shape(static_cast<size_t>(random.integer(min_rank, max_rank)));
  for (int64_t& extent : shape) extent = random.integer(random.chance(0.03) ? 0 : 1, max_extent);
  // Now and then a long axis, so that whole vectors and blocks are reached.
  if (!shape.empty() && random.chance(0.4))
    shape[static_cast<size_t>(random.integer(0, static_cast<int64_t>(shape.size()) - 1))] = random.integer(30, 150);
  return shape;
}

int test_copy(Random& random) {
  const Index shape = random_shape(random, 0, 5, 9);
  const DType dtype = kDTypes[random.integer(0, kNumDTypes - 1)];
  const TypedOperand x = TypedOperand::any(dtype, shape, random);
  const auto bytes = static_cast<size_t>(size_of(dtype));
  return check_typed("copy", "block", {x}, dtype, shape, {1, 1, 0, 0, 0}, random, [&](const Index& index, const std::byte* got) {
    return std::memcmp(got, x.element(index), bytes) == 0 ? "" : differs(value_of(dtype, got), x.at(index));
  });
}

int test_concatenate(Random& random) {
  Index shape = random_shape(random, 1, 4, 7);
  const auto axis = static_cast<size_t>(random.integer(0, static_cast<int64_t>(shape.size()) - 1));
  const DType dtype = kDTypes[random.integer(0, kNumDTypes - 1)];
  const auto bytes = static_cast<size_t>(size_of(dtype));
  std::vector<TypedOperand> inputs;
  Index starts;
  int64_t total = 0;
  for (int64_t n = random.integer(1, 5); n > 0; --n) {
    shape[axis] = random.chance(0.2) ? 0 : random.integer(1, 40);
    inputs.push_back(TypedOperand::any(dtype, shape, random));
    starts.push_back(total);
    total += shape[axis];
  }
  shape[axis] = total;
  return check_typed("concatenate", "concatenate", inputs, dtype, shape, {static_cast<int64_t>(axis), 0}, random,
                     [&](const Index& index, const std::byte* got) -> std::string {
                       size_t i = inputs.size() - 1;
                       while (starts[i] > index[axis] || inputs[i].view.shape[axis] == 0) --i;
                       Index inner = index;
                       inner[axis] -= starts[i];
                       if (std::memcmp(got, inputs[i].element(inner), bytes) == 0) return "";
                       return differs(value_of(dtype, got), inputs[i].at(inner));
                     });
}

int test_pad(Random& random) {
  const Index shape = random_shape(random, 0, 4, 6);
  const DType dtype = kDTypes[random.integer(0, kNumDTypes - 1)];
  const auto bytes = static_cast<size_t>(size_of(dtype));
  const auto rank = static_cast<int64_t>(shape.size());
  Index lo, interior, output;
  std::vector<int64_t> words = {rank}, hi_words = {rank}, interior_words = {rank};
  for (const int64_t extent : shape) {
    lo.push_back(random.integer(-4, 5));
    interior.push_back(random.chance(0.6) ? 0 : random.integer(1, 3));
    const int64_t spread = extent + std::max<int64_t>(extent - 1, 0) * interior.back();
    const int64_t hi = std::max<int64_t>(random.integer(-4, 5), -spread - lo.back());
    output.push_back(spread + lo.back() + hi);
    words.push_back(lo.back());
    hi_words.push_back(hi);
    interior_words.push_back(interior.back());
  }
  words.insert(words.end(), hi_words.begin(), hi_words.end());
  words.insert(words.end(), interior_words.begin(), interior_words.end());
  words.push_back(0);
  const TypedOperand x = TypedOperand::any(dtype, shape, random);
  const TypedOperand value = TypedOperand::dense(dtype, {}, random);
  return check_typed("pad", "pad", {x, value}, dtype, output, words, random,
                     [&](const Index& index, const std::byte* got) -> std::string {
                       Index inner;
                       bool inside = true;
                       for (size_t axis = 0; axis < shape.size(); ++axis) {
                         const int64_t at = index[axis] - lo[axis], step = interior[axis] + 1;
                         inside = inside && at >= 0 && at % step == 0 && at / step < shape[axis];
                         inner.push_back(at / step);
                       }
                       const std::byte* wanted = inside ? x.element(inner) : value.data();
                       return std::memcmp(got, wanted, bytes) == 0 ? "" : differs(value_of(dtype, got), value_of(dtype, wanted));
                     });
}

int test_refusals() {
  int failures = 0;
  const auto expect = [&](bool refused, const char* what) {
    if (!refused) std::fprintf(stderr, "accepted %s\n", what);
    failures += !refused;
  };
  const TensorView a = dense_view({2, 3}), b = dense_view({2, 4}), whole = dense_view({2, 7}), scalar = dense_view({});
  expect(!refuses("concatenate", {a, b}, whole, {1, 0}), "nothing: a right concatenate was refused");
  expect(refuses("concatenate", {a, b}, whole, {0, 0}), "concatenate along an axis on which the shapes do not fit");
  expect(refuses("concatenate", {a, b}, whole, {2, 0}), "concatenate along an axis that does not exist");
  expect(refuses("concatenate", {a, b}, whole, {-1, 0}), "concatenate along a negative axis");
  expect(refuses("concatenate", {a}, whole, {1, 0}), "concatenate that leaves some of its output unwritten");
  expect(refuses("concatenate", {a, b, b}, whole, {1, 0}), "concatenate longer than its output");
  expect(refuses("concatenate", {}, whole, {1, 0}), "concatenate of nothing");
  expect(refuses("concatenate", {a, dense_view({2, 4}, DType::kI32)}, whole, {1, 0}), "concatenate of two dtypes");
  expect(!refuses("concatenate", {a, b}, whole, {1, 1, 1, 0, 0, 0}), "nothing: a right concatenate with an epilogue was refused");
  expect(refuses("concatenate", {a, b}, whole, {1, 1, 2, 0, 0, 0}), "concatenate with an epilogue of which an input is missing");
  TensorView apart = a;
  std::swap(apart.strides[0], apart.strides[1]);
  expect(refuses("concatenate", {apart, b}, whole, {1, 1, 1, 0, 0, 0}), "concatenate of rows that are apart with an epilogue");
  expect(refuses("concatenate", {a, b}, whole, {1, 0, 0}), "concatenate with words left over");
  expect(!refuses("pad", {a, scalar}, whole, {2, 0, 2, 2, 0, 2, 2, 0, 0, 0}), "nothing: a right pad was refused");
  expect(refuses("pad", {a, scalar}, whole, {2, 0, 2, 2, 0, 1, 2, 0, 0, 0}), "pad with a wrong output shape");
  expect(refuses("pad", {a, scalar}, whole, {2, 0, 6, 2, 0, 2, 2, 0, -2, 0}), "pad with a negative interior");
  expect(refuses("pad", {a, scalar}, whole, {2, 0, INT64_MAX, 2, 0, 2, 2, 0, 0, 0}), "pad beyond 32 bits");
  expect(refuses("pad", {a, a}, whole, {2, 0, 2, 2, 0, 2, 2, 0, 0, 0}), "pad with a value that is no scalar");
  expect(refuses("pad", {a, scalar}, whole, {1, 0, 2, 0, 2, 2, 0, 0, 0}), "pad with a list too short");
  expect(refuses("pad", {a}, whole, {2, 0, 2, 2, 0, 2, 2, 0, 0, 0}), "pad without a value");
  expect(refuses("block", {a}, b, {1, 1, 0, 0, 0}), "a copy to another shape");
  expect(refuses("block", {dense_view({2, 4}, DType::kF64)}, b, {1, 1, 0, 0, 0}), "a copy from float64 to float32");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kRounds = ASPEN_SMALL_TESTS ? 250 : 1500;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  int failures = test_refusals();
  for (int round = 0; round < rounds && failures < 10; ++round) {
    Random random(static_cast<uint64_t>(round));
    failures += test_copy(random) + test_concatenate(random) + test_pad(random);
  }
  std::printf("movement_test: %d failures\n", failures);
  return failures != 0;
}
