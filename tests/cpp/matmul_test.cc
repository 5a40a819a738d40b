// matmul on every target against a double reference. Arguments: number of random cases, first seed.
#include "kernel_case.h"

using namespace aspen;
using namespace aspen::cpu::testing;

namespace {

#ifdef ASPEN_SMALL_TESTS
constexpr int64_t kCases = 60;
#else
constexpr int64_t kCases = 400;
#endif

double product(const std::vector<Operand>& inputs, const Index& at) {
  double sum = 0;
  const int64_t inner = inputs[0].view.shape[2];
  for (int64_t k = 0; k < inner; ++k) {
    sum += static_cast<double>(inputs[0].at({at[0], at[1], k})) * inputs[1].at({at[0], k, at[2]});
  }
  return sum;
}

Case make_case(int64_t batch, int64_t rows, int64_t inner, int64_t columns, Operand a, Operand b) {
  Case test;
  test.name = "matmul " + show({batch, rows, inner, columns});
  test.kernel = "matmul";
  test.inputs = {std::move(a), std::move(b)};
  test.output = {batch, rows, columns};
  test.reference = product;
  return test;
}

int random_case(uint64_t seed) {
  Random random(seed);
  const int64_t batch = random.pick<int64_t>({1, 1, 2, 3});
  int64_t rows = random.pick<int64_t>({1, random.integer(1, 7), random.integer(1, 40), random.integer(20, 90)});
  const int64_t inner = random.pick<int64_t>({0, 1, random.integer(1, 9), random.integer(1, 200), random.integer(1, 200)});
  const int64_t columns = random.pick<int64_t>({1, random.integer(1, 20), random.integer(1, 150), random.integer(100, 700)});
  if (columns > 200) rows = std::min<int64_t>(rows, 9);
  return check(make_case(batch, rows, inner, columns, Operand::any({batch, rows, inner}, random),
                         Operand::any({batch, inner, columns}, random)),
               random, random.chance(0.5));
}

// Sums too long for one chunk, of numbers of one sign, where rounding errors pile up.
int long_case(int64_t rows, int64_t inner, int64_t columns) {
  Random random(7);
  Operand a = Operand::dense({1, rows, inner}, random), b = Operand::dense({1, inner, columns}, random);
  for (Operand* operand : {&a, &b}) {
    for (float& value : operand->buffer) value = std::abs(value);
  }
  return check(make_case(1, rows, inner, columns, std::move(a), std::move(b)), random, rows % 2 == 0);
}

int hostile_cases() {
  int failures = 0;
  const auto expect = [&](bool refused, const char* what) {
    if (refused) return;
    std::fprintf(stderr, "matmul accepted %s\n", what);
    ++failures;
  };
  const auto a = dense_view({1, 3, 4}), b = dense_view({1, 4, 5}), out = dense_view({1, 3, 5});
  expect(refuses("matmul", {a}, out, {0}), "one input");
  expect(refuses("matmul", {a, b}, out, {}), "missing words");
  expect(refuses("matmul", {a, b}, out, {0, 0}), "words after the end");
  expect(refuses("matmul", {a, b}, out, {2}), "an epilogue mark of 2");
  expect(refuses("matmul", {a, dense_view({1, 5, 5})}, out, {0}), "unequal inner dimensions");
  expect(refuses("matmul", {a, dense_view({2, 4, 5})}, out, {0}), "unequal batches");
  expect(refuses("matmul", {a, b}, dense_view({1, 3, 6}), {0}), "an output too wide");
  expect(refuses("matmul", {a, b}, dense_view({3, 5}), {0}), "an output of rank 2");
  expect(refuses("matmul", {dense_view({1, 3, 4}, DType::kI32), dense_view({1, 4, 5}, DType::kI32)}, out, {0}), "int32");
  expect(refuses("matmul", {a, b}, dense_view({1, 3, 5}, DType::kI32), {0}), "an int32 output");
  expect(refuses("matmul", {a, b, out}, out, {0}), "an input too many");
  auto turned = dense_view({1, 3, 5});
  std::swap(turned.strides[1], turned.strides[2]);
  expect(refuses("matmul", {a, b}, turned, {0}), "an output that is not dense");
  auto huge = a;
  huge.shape[2] = int64_t{1} << 40;
  huge.strides[2] = 0;
  expect(refuses("matmul", {huge, b}, out, {0}), "an extent of 2^40");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t cases = argc > 1 ? std::atoll(argv[1]) : kCases;
  const int64_t first = argc > 2 ? std::atoll(argv[2]) : 1;
  int failures = hostile_cases();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    const int failed = random_case(static_cast<uint64_t>(seed));
    if (failed > 0) std::fprintf(stderr, "  (seed %lld, %d elements)\n", static_cast<long long>(seed), failed);
    failures += failed > 0;
  }
  for (const int64_t rows : {1, 4, 30}) failures += long_case(rows, 25088, 33) > 0;
  failures += long_case(50, 4000, 70) > 0;
  std::printf("matmul: %lld random cases, %d failures\n", static_cast<long long>(cases), failures);
  return failures == 0 ? 0 : 1;
}
