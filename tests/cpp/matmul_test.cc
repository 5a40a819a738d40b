// matmul on every target against a double reference. Arguments: number of random cases, first seed.
#include "kernel_case.h"

using namespace aspen;
using namespace aspen::cpu::testing;

namespace {

constexpr int64_t kCases = ASPEN_SMALL_TESTS ? 60 : 400;

// What docs/graph_format.md says: a label for each dimension of an operand.
struct Labels {
  Index a, b;

  std::vector<int64_t> words() const {
    std::vector<int64_t> words;
    for (const Index* labels : {&a, &b}) {
      words.push_back(static_cast<int64_t>(labels->size()));
      words.insert(words.end(), labels->begin(), labels->end());
    }
    return words;
  }
};

const Labels kPlain = {{0, 1, -1}, {0, -1, 2}};

Case make_case(std::string name, const Labels& labels, Index output, Operand a, Operand b) {
  Case test;
  test.name = "matmul " + name;
  test.kernel = "matmul";
  test.params = labels.words();
  test.inputs = {std::move(a), std::move(b)};
  test.output = std::move(output);
  test.mixes_dtypes = true;
  test.reference = [labels](const std::vector<Operand>& inputs, const Index& at) {
    // What is summed over, where each operand begins, and how far each summed dimension steps through it.
    constexpr auto kMost = static_cast<size_t>(kMaxRank);
    Index extents(kMost, 1), begins(2, 0), steps[2] = {Index(kMost, 0), Index(kMost, 0)};
    for (size_t i = 0; i < 2; ++i) {
      const Index& of = i == 0 ? labels.a : labels.b;
      begins[i] = inputs[i].origin;
      for (size_t d = 0; d < of.size(); ++d) {
        const int64_t stride = inputs[i].view.strides[d];
        if (of[d] >= 0) begins[i] += at[static_cast<size_t>(of[d])] * stride;
        if (of[d] < 0) extents[static_cast<size_t>(-1 - of[d])] = inputs[i].view.shape[d];
        if (of[d] < 0) steps[i][static_cast<size_t>(-1 - of[d])] = stride;
      }
    }
    if (size_of_shape(extents) == 0) return 0.0;
    const int64_t inner = extents[0], step_a = steps[0][0], step_b = steps[1][0];
    extents[0] = 1;
    Index summed(extents.size(), 0);
    const Index zero = summed;
    double sum = 0;
    do {
      const int64_t a = std::inner_product(summed.begin(), summed.end(), steps[0].begin(), begins[0]);
      const int64_t b = std::inner_product(summed.begin(), summed.end(), steps[1].begin(), begins[1]);
      for (int64_t k = 0; k < inner; ++k) {
        sum += static_cast<double>(inputs[0].buffer[static_cast<size_t>(a + k * step_a)]) *
               inputs[1].buffer[static_cast<size_t>(b + k * step_b)];
      }
    } while (next(summed, zero, extents));
    return sum;
  };
  return test;
}

Case make_plain(int64_t batch, int64_t rows, int64_t inner, int64_t columns, Operand a, Operand b) {
  return make_case(show({batch, rows, inner, columns}), kPlain, {batch, rows, columns}, std::move(a), std::move(b));
}

constexpr int64_t kPanel = 32;

// b of `inner` rows and these columns, its last dimensions, in panels; what is missing of the last one is not read.
Case make_panels(const Labels& labels, Index output, const Operand& a, const Index& shape, Random& random) {
  int64_t inner = 1, columns = 1;
  for (size_t d = 0; d < shape.size(); ++d) (labels.b[d] < 0 ? inner : columns) *= shape[d];
  Operand panels = Operand::dense({(columns + kPanel - 1) / kPanel, inner, kPanel}, random);
  Operand before = Operand::dense(shape, random);
  for (int64_t k = 0; k < inner; ++k) {
    for (int64_t c = 0; c < columns; ++c) {
      before.buffer[static_cast<size_t>(k * columns + c)] =
          panels.buffer[static_cast<size_t>((c / kPanel * inner + k) * kPanel + c % kPanel)];
    }
  }
  Case test = make_case(show(shape) + " in panels", labels, std::move(output), a, std::move(panels));
  test.kernel = "matmul_panels";
  test.params.push_back(static_cast<int64_t>(shape.size()));
  test.params.insert(test.params.end(), shape.begin(), shape.end());
  test.mixes_dtypes = false;
  const auto plain = test.reference;
  const std::vector<Operand> unpacked = {a, before};
  test.reference = [plain, unpacked](const std::vector<Operand>&, const Index& at) { return plain(unpacked, at); };
  return test;
}

int panels_case(uint64_t seed) {
  Random random(seed);
  const int64_t rows = random.pick<int64_t>({1, random.integer(1, 7), random.integer(1, 40)});
  const int64_t inner = random.integer(1, 40), outer = random.pick<int64_t>({1, random.integer(1, 4)});
  const int64_t columns = random.pick<int64_t>({random.integer(2, 70), random.integer(2, 20)});
  const int64_t heads = random.pick<int64_t>({1, random.integer(1, 5)});
  const bool turned = random.chance(0.5);
  const Labels labels = {turned ? Index{0, -2, -1} : Index{0, -1, -2}, {-1, -2, 1, 2}};
  const Operand a = Operand::any(turned ? Index{rows, inner, outer} : Index{rows, outer, inner}, random);
  return check(make_panels(labels, {rows, heads, columns}, a, {outer, inner, heads, columns}, random), random, random.chance(0.5),
               DType::kF32);
}

DType any_float(Random& random) { return random.pick({DType::kF32, DType::kF32, DType::kF16, DType::kBF16}); }

int random_case(uint64_t seed) {
  Random random(seed);
  const int64_t batch = random.pick<int64_t>({1, 1, 2, 3});
  int64_t rows = random.pick<int64_t>({1, random.integer(1, 7), random.integer(1, 40), random.integer(20, 90)});
  const int64_t inner = random.pick<int64_t>({0, 1, random.integer(1, 9), random.integer(1, 200), random.integer(1, 200)});
  const int64_t columns = random.pick<int64_t>({1, random.integer(1, 20), random.integer(1, 150), random.integer(100, 700)});
  if (columns > 200) rows = std::min<int64_t>(rows, 9);
  return check(make_plain(batch, rows, inner, columns, Operand::any({batch, rows, inner}, random),
                          Operand::any({batch, inner, columns}, random)),
               random, random.chance(0.5), any_float(random));
}

// Any number of dimensions of each kind, in any order everywhere.
int many_dimensions(uint64_t seed) {
  Random random(seed);
  Index output, summed;
  Labels labels;
  const auto extent = [&] { return random.pick<int64_t>({1, 2, random.integer(1, 5), random.integer(1, 20)}); };
  for (int64_t rank = random.integer(0, 5); static_cast<int64_t>(output.size()) < rank && size_of_shape(output) < 2000;) {
    const auto label = static_cast<int64_t>(output.size());
    output.push_back(extent());
    const auto kind = random.integer(0, 2);
    if (kind != 1) labels.a.push_back(label);
    if (kind != 0) labels.b.push_back(label);
  }
  for (int64_t rank = random.integer(0, 3); static_cast<int64_t>(summed.size()) < rank;) {
    summed.push_back(random.chance(0.05) ? 0 : extent());
    labels.a.push_back(-static_cast<int64_t>(summed.size()));
    labels.b.push_back(-static_cast<int64_t>(summed.size()));
  }
  const auto operand = [&](Index& of) {
    std::shuffle(of.begin(), of.end(), random.engine());
    Index shape;
    for (const int64_t label : of)
      shape.push_back(label < 0 ? summed[static_cast<size_t>(-1 - label)] : output[static_cast<size_t>(label)]);
    return Operand::any(shape, random);
  };
  Operand a = operand(labels.a), b = operand(labels.b);
  return check(
      make_case(show(labels.a) + " by " + show(labels.b) + " to " + show(output), labels, output, std::move(a), std::move(b)),
      random, !output.empty() && random.chance(0.5), any_float(random));
}

// Sums too long for one chunk, of numbers of one sign, where rounding errors pile up; b by rows or by columns.
int long_case(int64_t rows, int64_t inner, int64_t columns, bool by_columns, DType dtype = DType::kF32) {
  Random random(7);
  Operand a = Operand::dense({1, rows, inner}, random);
  Operand b = Operand::stored({1, inner, columns}, by_columns ? Index{0, 2, 1} : Index{0, 1, 2}, {1, 1, 1}, random);
  for (Operand* operand : {&a, &b}) {
    for (float& value : operand->buffer) value = std::abs(value);
  }
  return check(make_plain(1, rows, inner, columns, std::move(a), std::move(b)), random, rows % 2 == 0, dtype);
}

int hostile_cases() {
  int failures = 0;
  const auto expect = [&](bool refused, const char* what) {
    if (refused) return;
    std::fprintf(stderr, "matmul accepted %s\n", what);
    ++failures;
  };
  const auto a = dense_view({1, 3, 4}), b = dense_view({1, 4, 5}), out = dense_view({1, 3, 5});
  const auto with = [](const Labels& labels, std::vector<int64_t> rest) {
    std::vector<int64_t> words = labels.words();
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  };
  const auto plain = with(kPlain, {0});
  expect(refuses("matmul", {a}, out, plain), "one input");
  expect(refuses("matmul", {a, b}, out, {}), "missing words");
  expect(refuses("matmul", {a, b}, out, kPlain.words()), "a missing epilogue mark");
  expect(refuses("matmul", {a, b}, out, with(kPlain, {0, 0})), "words after the end");
  expect(refuses("matmul", {a, b}, out, with(kPlain, {2})), "an epilogue mark of 2");
  expect(refuses("matmul", {a, dense_view({1, 5, 5})}, out, plain), "unequal inner dimensions");
  expect(refuses("matmul", {a, dense_view({2, 4, 5})}, out, plain), "unequal batches");
  expect(refuses("matmul", {a, b}, dense_view({1, 3, 6}), plain), "an output too wide");
  expect(refuses("matmul", {a, b}, dense_view({3, 5}), plain), "an output of rank 2");
  expect(refuses("matmul", {a, b}, dense_view({1, 3, 5, 1}), plain), "an output's dimension from nowhere");
  expect(refuses("matmul", {a, b}, out, with({{0, 1}, {0, -1, 2}}, {0})), "too few labels");
  expect(refuses("matmul", {a, b}, out, with({{0, 1, -1, -2}, {0, -1, 2}}, {0})), "too many labels");
  expect(refuses("matmul", {a, b}, out, with({{0, 1, -9}, {0, -9, 2}}, {0})), "a ninth summed dimension");
  expect(refuses("matmul", {a, b}, out, with({{0, 1, int64_t{1} << 62}, {0, -1, 2}}, {0})), "an absurd label");
  expect(refuses("matmul", {a, b}, out, with({{0, 1, -1}, {0, -2, 2}}, {0})), "summed dimensions of one operand");
  expect(refuses("matmul", {dense_view({3, 3}), b}, out, with({{1, 1}, {0, -1, 2}}, {0})), "a label twice on an operand");
  expect(refuses("matmul", {dense_view({1, 3, 4}, DType::kI32), dense_view({1, 4, 5}, DType::kI32)}, out, plain), "int32");
  expect(refuses("matmul", {a, b}, dense_view({1, 3, 5}, DType::kI32), plain), "an int32 output");
  expect(refuses("matmul", {a, b, out}, out, plain), "an input too many");
  TensorView vast[2];
  for (TensorView& view : vast) {
    view.rank = 3;
    for (int d = 0; d < 3; ++d) view.shape[d] = INT32_MAX;
  }
  expect(refuses("matmul", {vast[0], vast[1]}, dense_view({}), with({{-1, -2, -3}, {-1, -2, -3}}, {0})), "sums of 2^93 products");
  auto turned = dense_view({1, 3, 5});
  std::swap(turned.strides[1], turned.strides[2]);
  expect(refuses("matmul", {a, b}, turned, plain), "an output that is not dense");
  auto huge = a;
  huge.shape[2] = int64_t{1} << 40;
  huge.strides[2] = 0;
  expect(refuses("matmul", {huge, b}, out, plain), "an extent of 2^40");

  const auto x = dense_view({3, 4}), panels = dense_view({2, 4, 32}), wide = dense_view({3, 40});
  const auto refused = [&](const TensorView& stored, std::vector<int64_t> words, const char* what) {
    words.push_back(0);
    expect(refuses("matmul_panels", {x, stored}, wide, words), what);
  };
  expect(!refuses("matmul_panels", {x, panels}, wide, {2, 0, -1, 2, -1, 1, 2, 4, 40, 0}), "nothing");
  refused(panels, {2, 0, -1, 2, -1, 1}, "panels without a shape");
  refused(panels, {2, 0, -1, 2, -1, 1, 1, 160}, "panels of another rank");
  refused(panels, {2, 0, -1, 2, -1, 1, 2, 4, 41}, "panels of other columns");
  refused(panels, {2, 0, -1, 2, -1, 1, 2, 5, 40}, "panels of other rows");
  refused(panels, {2, 0, -1, 2, 1, -1, 2, 40, 4}, "panels of columns outside of rows");
  refused(panels, {2, 0, -1, 3, -1, 0, 1, 3, 4, 3, 40}, "a batch of panels");
  refused(panels, {2, 0, -1, 9, -1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 4, 40, 1, 1, 1, 1, 1, 1, 1}, "panels of nine dimensions");
  refused(panels, {2, 0, -1, 2, -1, 1, 2, int64_t{1} << 62, int64_t{1} << 62}, "panels of an absurd shape");
  refused(dense_view({2, 4, 16}), {2, 0, -1, 2, -1, 1, 2, 4, 40}, "narrow panels");
  refused(dense_view({1, 4, 32}), {2, 0, -1, 2, -1, 1, 2, 4, 40}, "a panel too few");
  refused(dense_view({2, 4, 32}, DType::kBF16), {2, 0, -1, 2, -1, 1, 2, 4, 40}, "panels of bfloat16");
  auto strided = panels;
  strided.strides[1] = 64;
  refused(strided, {2, 0, -1, 2, -1, 1, 2, 4, 40}, "panels that are not dense");
  expect(refuses("matmul_panels", {dense_view({0, 4}), panels}, dense_view({40, 0}), {2, 1, -1, 2, -1, 0, 2, 4, 40, 0}),
         "panels of what are not the output's last dimensions");
  expect(refuses("matmul_panels", {x, panels}, dense_view({40, 3}), {2, 1, -1, 2, -1, 0, 2, 4, 40, 0}),
         "panels that give an output's rows");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t cases = argc > 1 ? std::atoll(argv[1]) : kCases;
  const int64_t first = argc > 2 ? std::atoll(argv[2]) : 1;
  int failures = hostile_cases();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    const int failed = random_case(static_cast<uint64_t>(seed)) + many_dimensions(static_cast<uint64_t>(seed)) +
                       panels_case(static_cast<uint64_t>(seed));
    if (failed > 0) std::fprintf(stderr, "  (seed %lld, %d elements)\n", static_cast<long long>(seed), failed);
    failures += failed > 0;
  }
  for (const bool by_columns : {false, true}) {
    for (const int64_t rows : {1, 4, 30}) failures += long_case(rows, 25088, 33, by_columns) > 0;
    failures += long_case(50, 4000, 70, by_columns) > 0;
    for (const int64_t rows : {1, 2, 3, 5, 6, 7}) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) failures += long_case(rows, 1700, 555, by_columns, dtype) > 0;
    }
  }
  std::printf("matmul: %lld random cases, %d failures\n", static_cast<long long>(cases), failures);
  return failures == 0 ? 0 : 1;
}
