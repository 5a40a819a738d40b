// The kernel "pool" against a reference that walks every window position in double (floats) or with wrapping (integers).
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "typed_case.h"

namespace {

using namespace aspen;
using namespace aspen::cpu::testing;

enum Kind : int64_t { kSum, kMax, kMin, kProduct };

struct Window {
  Kind kind;
  Index window, strides, lo, hi, base, dilation;

  std::vector<int64_t> words() const {
    std::vector<int64_t> words = {kind};
    for (const Index* list : {&window, &strides, &lo, &hi, &base, &dilation}) {
      words.push_back(static_cast<int64_t>(list->size()));
      words.insert(words.end(), list->begin(), list->end());
    }
    return words;
  }
};

struct Reference {
  double value;
  int32_t integer;
  double magnitude;  // of what was added or multiplied
};

Reference reference(const Window& w, const TypedOperand& x, const Index& out) {
  const bool floats = x.view.dtype != DType::kI32;
  const double infinity = std::numeric_limits<double>::infinity();
  Reference r = {};
  if (w.kind == kProduct) r = {1, 1, 1};
  if (w.kind == kMax) r = {-infinity, INT32_MIN, 0};
  if (w.kind == kMin) r = {infinity, INT32_MAX, 0};
  const size_t rank = out.size();
  Index tap(rank, 0);
  do {
    Index at;
    bool inside = true;
    for (size_t axis = 0; axis < rank; ++axis) {
      const int64_t position = out[axis] * w.strides[axis] + tap[axis] * w.dilation[axis] - w.lo[axis];
      inside = inside && position >= 0 && position % w.base[axis] == 0 && position / w.base[axis] < x.view.shape[axis];
      at.push_back(position / w.base[axis]);
    }
    if (!inside) continue;
    const double v = x.at(at);
    const auto i = floats ? 0 : static_cast<int32_t>(v);
    switch (w.kind) {
      case kSum:
        r.value += v;
        r.magnitude += std::abs(v);
        r.integer = static_cast<int32_t>(static_cast<uint32_t>(r.integer) + static_cast<uint32_t>(i));
        break;
      case kProduct:
        r.value *= v;
        r.magnitude *= std::abs(v);
        r.integer = static_cast<int32_t>(static_cast<uint32_t>(r.integer) * static_cast<uint32_t>(i));
        break;
      case kMax:
        r.value = std::isnan(v) || v > r.value ? v : r.value;
        r.integer = std::max(r.integer, i);
        break;
      case kMin:
        r.value = std::isnan(v) || v < r.value ? v : r.value;
        r.integer = std::min(r.integer, i);
        break;
    }
  } while (next(tap, Index(rank, 0), w.window));
  return r;
}

int test_random(Random& random) {
  const auto rank = static_cast<size_t>(random.integer(1, 5));
  const bool image = rank >= 3 && random.chance(0.6);  // windows over the middle axes, as in NHWC
  Window w;
  w.kind = random.pick({kSum, kMax, kMin, kProduct});
  Index shape, output;
  for (size_t axis = 0; axis < rank; ++axis) {
    const bool channels = axis == rank - 1;
    const bool plain = image && (channels || axis == 0);
    shape.push_back(channels && random.chance(0.5) ? random.integer(1, 150) : random.integer(random.chance(0.02) ? 0 : 1, 9));
    const auto small = [&](int64_t lo, int64_t hi, int64_t otherwise) { return plain ? otherwise : random.integer(lo, hi); };
    w.window.push_back(small(1, rank > 3 ? 3 : 5, 1));
    w.strides.push_back(small(1, 3, 1));
    w.lo.push_back(small(-2, 4, 0));
    w.hi.push_back(small(-2, 4, 0));
    w.base.push_back(random.chance(0.7) ? 1 : small(1, 4, 1));
    w.dilation.push_back(random.chance(0.6) ? 1 : small(1, 4, 1));
    const int64_t padded = (shape[axis] == 0 ? 0 : (shape[axis] - 1) * w.base[axis] + 1) + w.lo[axis] + w.hi[axis];
    const int64_t spanned = (w.window[axis] - 1) * w.dilation[axis] + 1;
    output.push_back(padded < spanned ? 0 : (padded - spanned) / w.strides[axis] + 1);
  }
  const DType dtype = random.pick({DType::kF32, DType::kF32, DType::kF16, DType::kBF16, DType::kI32});
  const bool floats = dtype != DType::kI32;
  std::vector<TypedOperand> inputs = {image && random.chance(0.7) ? TypedOperand::dense(dtype, shape, random)
                                                                  : TypedOperand::any(dtype, shape, random)};
  const TypedOperand& x = inputs[0];
  if (dtype == DType::kF32 && w.kind != kSum && w.kind != kProduct && !x.buffer.empty() && random.chance(0.3)) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const int64_t at = random.integer(0, static_cast<int64_t>(x.buffer.size() / 4) - 1);
    std::memcpy(inputs[0].buffer.data() + at * 4, &nan, sizeof nan);
  }
  std::vector<int64_t> params = w.words();
  // Epilogues: none; a float one with a vector of scales, by channel; and one whose result is narrower than the accumulator.
  const int epilogue = static_cast<int>(random.integer(0, 2));
  DType out_dtype = dtype;
  if (epilogue == 0) {
    params.push_back(0);
    if (is_half(dtype) && random.chance(0.3)) out_dtype = DType::kF32;
  } else if (epilogue == 1) {
    Index steps(rank, 0), order(rank);
    std::iota(order.begin(), order.end(), 0);
    steps[rank - 1] = 1;
    inputs.push_back(TypedOperand::make(dtype, output, order, steps, random, 0));
    constexpr int64_t kMulFloat = 3, kMulInt = 66;
    for (const int64_t word : {int64_t{1}, int64_t{2}, int64_t{0}, int64_t{5}, floats ? kMulFloat : kMulInt, int64_t{2},
                               int64_t{0}, int64_t{1}, int64_t{0}, int64_t{2}}) {
      params.push_back(word);
    }
  } else {
    constexpr int64_t kBoolFromFloat = 125, kBoolFromInt = 126;
    for (const int64_t word : {int64_t{1}, int64_t{1}, int64_t{0}, int64_t{5}, floats ? kBoolFromFloat : kBoolFromInt, int64_t{1},
                               int64_t{0}, int64_t{0}, int64_t{0}, int64_t{1}}) {
      params.push_back(word);
    }
    out_dtype = DType::kBool;
  }
  return check_typed(
      "pool of kind " + std::to_string(w.kind), "pool", inputs, out_dtype, output, params, random,
      [&](const Index& index, const std::byte* got) -> std::string {
        const Reference r = reference(w, inputs[0], index);
        const double value = value_of(out_dtype, got);
        if (dtype == DType::kI32) {
          int32_t wanted = r.integer;
          if (epilogue == 1) {
            wanted = static_cast<int32_t>(static_cast<uint32_t>(wanted) *
                                          static_cast<uint32_t>(static_cast<int32_t>(inputs[1].at(index))));
          }
          if (epilogue == 2) wanted = wanted != 0;
          return value == wanted ? "" : differs(value, wanted);
        }
        // Sums that cancel may or may not be exactly zero.
        if (epilogue == 2) return value == (r.value != 0) || r.value != std::round(r.value) ? "" : differs(value, r.value);
        const double scale = epilogue == 1 ? inputs[1].at(index) : 1;
        const double wanted = r.value * scale;
        if (std::isnan(wanted)) return std::isnan(value) ? "" : differs(value, wanted);
        const double error = 2e-6 * (r.magnitude + std::abs(r.value)) * std::abs(scale);
        if (value == rounded(out_dtype, wanted) || std::abs(value - wanted) <= error + rounding_error(out_dtype, wanted))
          return "";
        return differs(value, wanted);
      });
}

int test_refusals() {
  int failures = 0;
  const auto expect = [&](bool wanted, const Window& w, const Index& output, const char* what, DType dtype = DType::kF32) {
    std::vector<int64_t> words = w.words();
    words.push_back(0);
    if (refuses("pool", {dense_view({1, 8, 8, 3}, dtype)}, dense_view(output, dtype), words) != wanted) {
      std::fprintf(stderr, "%s %s\n", wanted ? "accepted" : "refused", what);
      ++failures;
    }
  };
  const Index ones(4, 1), zeros(4, 0);
  const Window right = {kMax, {1, 3, 3, 1}, {1, 2, 2, 1}, {0, 1, 1, 0}, {0, 1, 1, 0}, ones, ones};
  expect(false, right, {1, 4, 4, 3}, "a right pool");
  expect(true, right, {1, 5, 4, 3}, "a wrong output shape");
  expect(true, right, {1, 4, 4}, "a wrong rank");
  expect(true, right, {1, 4, 4, 3}, "float64", DType::kF64);
  for (Index Window::* list : {&Window::window, &Window::strides, &Window::base, &Window::dilation}) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
      Window w = right;
      (w.*list)[1] = value;
      expect(true, w, {1, 4, 4, 3}, "a parameter out of range");
      expect(true, w, {1, 0, 4, 3}, "a parameter out of range, of an empty output");
    }
  }
  for (const int64_t value : {int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
    Window w = right;
    w.lo[1] = value;
    expect(true, w, {1, 4, 4, 3}, "a padding out of range");
  }
  Window w = right;
  w.kind = static_cast<Kind>(4);
  expect(true, w, {1, 4, 4, 3}, "an unknown kind");
  w = right;
  w.window.pop_back();
  expect(true, w, {1, 4, 4, 3}, "a window of fewer axes");
  // As large as it may be: one window over everything, mostly padding.
  w = right;
  w.window = {1, INT32_MAX, 8, 1};
  w.lo = {0, INT32_MAX - 8, 0, 0};
  w.hi = w.strides = ones;
  w.hi = {0, 0, 0, 0};
  expect(false, w, {1, 1, 1, 3}, "a huge window");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kRounds = ASPEN_SMALL_TESTS ? 100 : 700;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  int failures = test_refusals();
  for (int round = 0; round < rounds && failures < 10; ++round) {
    Random random(static_cast<uint64_t>(round));
    failures += test_random(random);
  }
  std::printf("pool_test: %d failures\n", failures);
  return failures != 0;
}
