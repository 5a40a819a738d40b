// conv2d on every target against a double reference. Arguments: number of random cases, first seed.
#include "kernel_case.h"

using namespace aspen;
using namespace aspen::cpu::testing;

namespace {

constexpr int64_t kCases = ASPEN_SMALL_TESTS ? 60 : 400;

struct Geometry {
  int64_t images = 1, height = 1, width = 1, channels = 1, kernel_height = 1, kernel_width = 1, out_channels = 1, groups = 1;
  int64_t strides[2] = {1, 1}, padding[4] = {0, 0, 0, 0}, dilation[2] = {1, 1};

  Index x() const { return {images, height, width, channels}; }
  Index w() const { return {kernel_height, kernel_width, channels / groups, out_channels}; }
  Index output() const {
    const int64_t down = height + padding[0] + padding[1] - ((kernel_height - 1) * dilation[0] + 1);
    const int64_t across = width + padding[2] + padding[3] - ((kernel_width - 1) * dilation[1] + 1);
    return {images, down < 0 ? 0 : down / strides[0] + 1, across < 0 ? 0 : across / strides[1] + 1, out_channels};
  }
  std::vector<int64_t> params() const {
    return {2, strides[0], strides[1], 4, padding[0], padding[1], padding[2], padding[3], 2, dilation[0], dilation[1], groups};
  }
};

Case make_case(const Geometry& g, Operand x, Operand w) {
  Case test;
  test.name = "conv2d x " + show(g.x()) + " w " + show(g.w()) + " params " + show(g.params());
  test.kernel = "conv2d";
  test.inputs = {std::move(x), std::move(w)};
  test.output = g.output();
  test.params = g.params();
  test.reference = [g](const std::vector<Operand>& inputs, const Index& at) {
    const int64_t depth = g.channels / g.groups;
    const int64_t group = at[3] / (g.out_channels / g.groups);
    double sum = 0;
    for (int64_t i = 0; i < g.kernel_height; ++i) {
      const int64_t h = at[1] * g.strides[0] - g.padding[0] + i * g.dilation[0];
      if (h < 0 || h >= g.height) continue;
      for (int64_t j = 0; j < g.kernel_width; ++j) {
        const int64_t v = at[2] * g.strides[1] - g.padding[2] + j * g.dilation[1];
        if (v < 0 || v >= g.width) continue;
        for (int64_t c = 0; c < depth; ++c) {
          sum += static_cast<double>(inputs[0].at({at[0], h, v, group * depth + c})) * inputs[1].at({i, j, c, at[3]});
        }
      }
    }
    return sum;
  };
  return test;
}

constexpr int64_t kPanel = 32;

// The same in one group with weights in panels, of which what is missing of the last one is not read; sometimes x is scaled.
Case make_panels(const Geometry& g, Operand x, Random& random) {
  const Operand panels =
      Operand::dense({(g.out_channels + kPanel - 1) / kPanel, g.kernel_height, g.kernel_width, g.channels, kPanel}, random);
  Operand before = Operand::dense(g.w(), random);
  const int64_t inner = g.kernel_height * g.kernel_width * g.channels;
  for (int64_t k = 0; k < inner; ++k) {
    for (int64_t c = 0; c < g.out_channels; ++c) {
      before.buffer[static_cast<size_t>(k * g.out_channels + c)] =
          panels.buffer[static_cast<size_t>((c / kPanel * inner + k) * kPanel + c % kPanel)];
    }
  }
  Case test = make_case(g, std::move(x), panels);
  test.name += " in panels";
  test.kernel = "conv2d_panels";
  const bool scaled = random.chance(0.5);
  test.params.insert(test.params.end(), {g.out_channels, scaled});
  Operand multiplied = test.inputs[0];
  if (scaled) {
    Operand scale = Operand::stored(g.x(), {0, 1, 2, 3}, {1, 0, 0, 1}, random);
    multiplied = Operand::dense(g.x(), random);
    Index at(4, 0);
    for (float& value : multiplied.buffer) {
      value = test.inputs[0].at(at) * scale.at(at);
      next(at, Index(4, 0), g.x());
    }
    test.inputs.push_back(std::move(scale));
  }
  const auto plain = test.reference;
  const std::vector<Operand> unpacked = {multiplied, before};
  test.reference = [plain, unpacked](const std::vector<Operand>&, const Index& at) { return plain(unpacked, at); };
  return test;
}

int random_case(uint64_t seed) {
  Random random(seed);
  Geometry g;
  g.images = random.pick<int64_t>({1, 1, 2, 3});
  g.height = random.integer(1, 14);
  g.width = random.integer(1, 24);
  switch (random.integer(0, 4)) {
    case 0:  // depthwise, sometimes with several filters a channel
      g.groups = g.channels = random.integer(1, 90);
      g.out_channels = g.channels * random.pick<int64_t>({1, 1, 1, 2, 3});
      break;
    case 1:
      g.groups = random.integer(1, 6);
      g.channels = g.groups * random.integer(1, 9);
      g.out_channels = g.groups * random.integer(1, 40);
      break;
    case 2: {  // many narrow groups
      g.groups = random.integer(2, 24);
      const int64_t depth = random.pick<int64_t>({1, 2, 4, 8, random.integer(1, 8)});
      g.channels = g.groups * depth;
      g.out_channels = g.groups * random.pick<int64_t>({depth, depth, random.integer(1, 17)});
      break;
    }
    case 3:  // few channels
      g.channels = random.integer(1, 4);
      g.out_channels = random.integer(1, 70);
      break;
    default:
      g.channels = random.integer(1, 50);
      g.out_channels = random.integer(1, 100);
  }
  g.kernel_height = random.pick<int64_t>({1, 3, random.integer(1, 7)});
  g.kernel_width = random.pick<int64_t>({1, 3, random.integer(1, 7)});
  for (int i = 0; i < 2; ++i) {
    g.strides[i] = random.pick<int64_t>({1, 1, 2, 3});
    g.dilation[i] = random.pick<int64_t>({1, 1, 1, 2, 3});
  }
  for (int64_t& pad : g.padding) pad = random.pick<int64_t>({0, 1, random.integer(0, 8), random.integer(-3, 3)});
  const bool plain = random.chance(0.5);
  int failures = 0;
  if (g.groups == 1) {
    failures = check(make_panels(g, plain ? Operand::dense(g.x(), random) : Operand::any(g.x(), random), random), random,
                     random.chance(0.5), DType::kF32);
  }
  return failures + check(make_case(g, plain ? Operand::dense(g.x(), random) : Operand::any(g.x(), random),
                                    plain ? Operand::dense(g.w(), random) : Operand::any(g.w(), random)),
                          random, random.chance(0.5), random.pick({DType::kF32, DType::kF32, DType::kF16, DType::kBF16}));
}

// Inner dimensions that are cut into chunks, between and inside taps.
int long_case(int64_t channels, int64_t kernel, int64_t out_channels, bool transposed, DType dtype) {
  Random random(11);
  Geometry g;
  g.height = g.width = 7;
  g.channels = channels;
  g.kernel_height = g.kernel_width = kernel;
  g.out_channels = out_channels;
  for (int64_t& pad : g.padding) pad = kernel / 2;
  const Index order = {0, 3, 1, 2}, ones(4, 1);  // NCHW
  const Operand x = transposed ? Operand::stored(g.x(), order, ones, random) : Operand::dense(g.x(), random);
  const int failures = dtype == DType::kF32 ? check(make_panels(g, x, random), random, transposed, dtype) : 0;
  return failures + check(make_case(g, x, Operand::dense(g.w(), random)), random, transposed, dtype);
}

int hostile_cases() {
  int failures = 0;
  const auto expect = [&](bool refused, const char* what) {
    if (refused) return;
    std::fprintf(stderr, "conv2d accepted %s\n", what);
    ++failures;
  };
  const auto x = dense_view({1, 8, 8, 4}), w = dense_view({3, 3, 4, 6}), out = dense_view({1, 6, 6, 6});
  const std::vector<int64_t> good = {2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1, 0};
  const auto with = [&](size_t at, int64_t value) {
    auto params = good;
    params[at] = value;
    return params;
  };
  expect(!refuses("conv2d", {x, w}, out, good), "nothing at all");
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const int64_t value : {int64_t{0}, int64_t{-1}, kHuge, INT64_MIN}) {
    for (const size_t at : {1, 2, 9, 10, 11}) expect(refuses("conv2d", {x, w}, out, with(at, value)), "a wild attribute");
  }
  for (const int64_t value : {int64_t{1}, int64_t{-1}, kHuge, INT64_MIN, INT64_MAX}) {
    for (const size_t at : {4, 5, 6, 7}) expect(refuses("conv2d", {x, w}, out, with(at, value)), "wild padding");
  }
  for (const size_t at : {0, 3, 8}) {
    for (const int64_t value : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{-1}, kHuge}) {
      expect(refuses("conv2d", {x, w}, out, with(at, value)), "a list of the wrong length");
    }
  }
  expect(refuses("conv2d", {x, w}, out, with(11, 2)), "groups that do not divide");
  for (size_t size = 0; size < good.size(); ++size) {
    expect(refuses("conv2d", {x, w}, out, {good.begin(), good.begin() + static_cast<int64_t>(size)}), "truncated words");
  }
  expect(refuses("conv2d", {x, dense_view({3, 3, 5, 6})}, out, good), "unequal channels");
  expect(refuses("conv2d", {x, dense_view({0, 3, 4, 6})}, out, good), "an empty kernel");
  expect(refuses("conv2d", {x, dense_view({3, 3, 24})}, out, good), "weights of rank 3");
  expect(refuses("conv2d", {x, w}, dense_view({1, 6, 7, 6}), good), "an output too wide");
  expect(refuses("conv2d", {x, w}, dense_view({2, 6, 6, 6}), good), "an image too many");
  expect(refuses("conv2d", {dense_view({1, 8, 8, 4}, DType::kF64), w}, out, good), "float64");
  expect(refuses("conv2d", {dense_view({1, 8, 8, 4}, DType::kBF16), w}, out, good), "weights of another dtype");
  expect(refuses("conv2d", {x, w}, dense_view({1, 6, 6, 6}, DType::kI32), good), "an output of integers");
  expect(refuses("conv2d", {x, w, out}, out, good), "an input too many");
  // Endless sums: a window of 2^31 x 2^31 equal taps.
  auto wide_x = dense_view({1, 1, 1, 4}), wide_w = dense_view({1, 1, 4, 6});
  for (const int axis : {0, 1}) {
    wide_w.shape[axis] = INT32_MAX;
    wide_w.strides[axis] = 0;
    wide_x.shape[axis + 1] = INT32_MAX;
    wide_x.strides[axis + 1] = 0;
  }
  expect(refuses("conv2d", {wide_x, wide_w}, dense_view({1, 1, 1, 6}), good), "2^62 taps");
  // The longest possible reach, of a window that never fits: nothing to compute, and nothing may overflow.
  for (const int64_t depth : {1, 2}) {
    auto tall_w = dense_view({INT32_MAX, 1, depth, 4});
    tall_w.strides[0] = 0;
    const std::vector<int64_t> reaching = {2, 1, 1, 4, 0, 0, 0, 0, 2, INT32_MAX, 1, 4 / depth, 0};
    expect(!refuses("conv2d", {x, tall_w}, dense_view({1, 0, 8, 4}), reaching), "nothing of a long reach");
  }

  const auto panels = dense_view({2, 3, 3, 4, 32}), wide = dense_view({1, 6, 6, 40});
  const auto refused = [&](const TensorView& stored, int64_t groups, int64_t columns, const char* what) {
    expect(refuses("conv2d_panels", {x, stored}, wide, {2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, groups, columns, 0, 0}), what);
  };
  expect(!refuses("conv2d_panels", {x, panels}, wide, {2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1, 40, 0, 0}), "no panels");
  auto scale = x;
  scale.strides[1] = scale.strides[2] = 0;
  const auto scaled = [&](const std::vector<TensorView>& inputs, int64_t mark) {
    return !refuses("conv2d_panels", inputs, wide, {2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1, 40, mark, 0});
  };
  expect(scaled({x, panels, scale}, 1), "no scale");
  expect(!scaled({x, panels, scale}, 0), "a scale without its mark");
  expect(!scaled({x, panels, scale}, 2), "a wild mark of a scale");
  expect(!scaled({x, panels}, 1), "a mark without its scale");
  expect(!scaled({x, panels, x}, 1), "a scale of pixels");
  auto other = scale;
  other.strides[3] = 2;
  expect(!scaled({x, panels, other}, 1), "a scale whose channels are apart");
  other = scale;
  other.dtype = DType::kBF16;
  expect(!scaled({x, panels, other}, 1), "a scale of bfloat16");
  other = scale;
  other.shape[3] = 3;
  expect(!scaled({x, panels, other}, 1), "a scale of other channels");
  expect(refuses("conv2d_panels", {x, panels}, wide, {2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1, 0}), "panels without their columns");
  refused(panels, 1, 41, "panels of other columns");
  refused(panels, 2, 40, "panels of groups");
  refused(dense_view({1, 3, 3, 4, 32}), 1, 40, "a panel too few");
  refused(dense_view({3, 3, 3, 4, 32}), 1, 40, "a panel too many");
  refused(dense_view({2, 3, 3, 4, 16}), 1, 40, "narrow panels");
  refused(dense_view({2, 3, 3, 5, 32}), 1, 40, "panels of other channels");
  refused(dense_view({2, 9, 4, 32}), 1, 40, "panels of rank 4");
  refused(dense_view({2, 3, 3, 4, 32}, DType::kBF16), 1, 40, "panels of bfloat16");
  auto strided = panels;
  strided.strides[3] = 64;
  refused(strided, 1, 40, "panels that are not dense");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  int failures = hostile_cases() + run_cases("conv2d", argc, argv, kCases, random_case);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool transposed : {false, true}) {
      failures += long_case(512, 3, 40, transposed, dtype) > 0;   // chunks of whole taps
      failures += long_case(4000, 1, 20, transposed, dtype) > 0;  // parts of a tap
      failures += long_case(1700, 3, 20, transposed, dtype) > 0;  // parts of several taps
    }
  }
  return failures == 0 ? 0 : 1;
}
