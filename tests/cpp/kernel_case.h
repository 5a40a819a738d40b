// Runs one op of the CPU back-end on random views and random boxes and compares with a reference computed in double.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "cpu/target.h"
#include "half.h"

namespace aspen::cpu::testing {

using Index = std::vector<int64_t>;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t integer(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  float normal() { return std::normal_distribution<float>()(engine_); }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

inline int64_t size_of_shape(const Index& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Steps `index` through `box` in row-major order; false after the last.
inline bool next(Index& index, const Index& lo, const Index& hi) {
  for (size_t axis = index.size(); axis-- > 0;) {
    if (++index[axis] < hi[axis]) return true;
    index[axis] = lo[axis];
  }
  return false;
}

// A tensor in a buffer of exactly its own size, so that a sanitizer sees any access beyond it, read through a view.
struct Operand {
  TensorView view;
  std::vector<float> buffer;
  int64_t origin = 0;

  const float* data() const { return buffer.data() + origin; }
  float at(std::span<const int64_t> index) const {
    int64_t offset = origin;
    for (size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * view.strides[axis];
    return buffer[static_cast<size_t>(offset)];
  }
  float at(std::initializer_list<int64_t> index) const { return at(std::span(index)); }

  // Axes stored in the order `order`, outermost first; `steps` walk them (0: broadcast, negative: reversed).
  static Operand stored(const Index& shape, const Index& order, const Index& steps, Random& random) {
    Operand operand;
    operand.view.rank = static_cast<int>(shape.size());
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      const auto axis = static_cast<size_t>(order[i]);
      const int64_t step = steps[axis];
      operand.view.shape[axis] = shape[axis];
      operand.view.strides[axis] = step * stride;
      if (shape[axis] == 0) continue;
      if (step < 0) operand.origin += (shape[axis] - 1) * -step * stride;
      stride *= step == 0 ? 1 : (shape[axis] - 1) * std::abs(step) + 1;
    }
    operand.buffer.resize(static_cast<size_t>(size_of_shape(shape) == 0 ? 0 : stride));
    if (operand.buffer.empty()) operand.origin = 0;
    for (float& value : operand.buffer) value = random.normal();
    return operand;
  }

  static Operand dense(const Index& shape, Random& random) {
    Index order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return stored(shape, order, Index(shape.size(), 1), random);
  }

  static Operand any(const Index& shape, Random& random) {
    Index order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    if (random.chance(0.4)) return stored(shape, order, Index(shape.size(), 1), random);
    if (random.chance(0.5)) std::shuffle(order.begin(), order.end(), random.engine());
    Index steps;
    for (size_t i = 0; i < shape.size(); ++i) steps.push_back(random.pick<int64_t>({1, 1, 1, 1, -1, 2, -3, 0}));
    return stored(shape, order, steps, random);
  }
};

inline const Kernel& find_kernel(Target target, std::string_view name) {
  for (const Kernel& kernel : kernels(target)) {
    if (kernel.name == name) return kernel;
  }
  std::fprintf(stderr, "no kernel %s\n", std::string(name).c_str());
  std::abort();
}

inline std::string show(const Index& index) {
  std::string text = "(";
  for (const int64_t i : index) text += (text.size() > 1 ? ", " : "") + std::to_string(i);
  return text + ")";
}

struct Case {
  std::string name;  // for messages
  const char* kernel;
  std::vector<Operand> inputs;
  Index output;
  std::vector<int64_t> params;  // without the mark of the epilogue
  // The result before the epilogue.
  std::function<double(const std::vector<Operand>&, const Index&)> reference;
  bool mixes_dtypes = false;  // whether the kernel takes its own inputs in different dtypes
};

// max(result * scale + shift + residual, 0), with scale and shift by channel: BatchNorm, residual connection and ReLU.
inline std::vector<int64_t> epilogue_words() {
  constexpr int64_t kAdd = 1, kMul = 3, kRelu = 40;
  return {1,  4,    0,  //
          20, kMul, 4, 0, 1, 0, kAdd, 5, 4, 2, 0, kAdd, 6, 5, 3, 0, kRelu, 7, 6, 0, 0, 7};
}

// Aligned memory of exactly `size` bytes.
struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};
inline std::unique_ptr<std::byte, AlignedDelete> aligned(size_t size) {
  return std::unique_ptr<std::byte, AlignedDelete>(static_cast<std::byte*>(::operator new(size, std::align_val_t{64})));
}

// Element `index` of adjacent floats.
inline double element_value(DType dtype, const std::byte* data, size_t index) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
  };
  return is_half(dtype) ? half_value(dtype, read(uint16_t{})) : read(float{});
}

// Runs the case on every available target, on random boxes. Returns the number of failures, each reported on stderr. With a
// dtype of 16 bits the inputs are rounded to it, and some outputs are of that dtype too.
inline int check(const Case& test, Random& random, bool with_epilogue, DType dtype = DType::kF32) {
  std::vector<Operand> inputs = test.inputs;
  const size_t num_main = inputs.size();
  std::vector<int64_t> params = test.params;
  const size_t rank = test.output.size();
  if (with_epilogue) {
    Index channels_only(rank, 0);
    channels_only.at(rank - 1) = 1;
    Index order(rank);
    std::iota(order.begin(), order.end(), 0);
    inputs.push_back(Operand::stored(test.output, order, channels_only, random));
    inputs.push_back(Operand::stored(test.output, order, channels_only, random));
    inputs.push_back(Operand::any(test.output, random));
    const auto words = epilogue_words();
    params.insert(params.end(), words.begin(), words.end());
  } else {
    params.push_back(0);
  }

  const DType out_dtype = random.chance(0.7) ? dtype : DType::kF32;
  std::vector<std::vector<uint16_t>> halves(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_half(dtype) || ((i >= num_main || test.mixes_dtypes) && random.chance(0.3))) continue;
    inputs[i].view.dtype = dtype;
    for (float& value : inputs[i].buffer) {
      halves[i].push_back(half_bits(dtype, value));
      value = static_cast<float>(half_value(dtype, halves[i].back()));
    }
  }

  // The reference, of the whole output.
  const auto size = static_cast<size_t>(size_of_shape(test.output));
  std::vector<double> expected;
  double largest = 0;
  Index index(rank, 0);
  const Index zero(rank, 0);
  for (size_t i = 0; i < size; ++i, next(index, zero, test.output)) {
    double value = test.reference(inputs, index);
    largest = std::max(largest, std::abs(value));
    if (with_epilogue) {
      value = value * inputs[num_main].at(index) + inputs[num_main + 1].at(index) + inputs[num_main + 2].at(index);
      value = std::max(value, 0.0);
      largest = std::max(largest, std::abs(value));
    }
    expected.push_back(value);
  }

  // Cut every axis at one point and compute some of the boxes.
  Index cuts;
  for (const int64_t extent : test.output) cuts.push_back(random.chance(0.5) ? 0 : random.integer(0, extent));
  const uint64_t wanted = random.chance(0.5) ? ~uint64_t{0} : static_cast<uint64_t>(random.integer(1, 0xffff));

  int failures = 0;
  for (const Target target : available_targets()) {
    const auto fail = [&](const std::string& message) {
      if (failures++ == 0)
        std::fprintf(stderr, "%s on %s: %s\n", test.name.c_str(), std::string(name(target)).c_str(), message.c_str());
    };
    std::vector<TensorView> views;
    std::vector<const void*> pointers;
    for (size_t i = 0; i < inputs.size(); ++i) {
      views.push_back(inputs[i].view);
      pointers.push_back(inputs[i].data());
      if (is_half(inputs[i].view.dtype)) pointers.back() = halves[i].data() + inputs[i].origin;
    }
    TensorView output;
    output.dtype = out_dtype;
    output.rank = static_cast<int>(rank);
    int64_t stride = 1;
    for (size_t axis = rank; axis-- > 0; stride *= test.output[axis]) {
      output.shape[axis] = test.output[axis];
      output.strides[axis] = stride;
    }
    const PreparedOp prepared = find_kernel(target, test.kernel).prepare(OpSpec{views, output, params});

    std::vector<std::byte> result(size * static_cast<size_t>(size_of(out_dtype)), std::byte{0xff});  // NaN
    std::vector<bool> written(size, false);
    for (uint64_t box = 0; box < (uint64_t{1} << rank); ++box) {
      if ((wanted >> box & 1) == 0) continue;
      std::vector<int32_t> lo, hi;
      Index from, to;
      bool some = true;
      for (size_t axis = 0; axis < rank; ++axis) {
        from.push_back((box >> axis & 1) != 0 ? cuts[axis] : 0);
        to.push_back((box >> axis & 1) != 0 ? test.output[axis] : cuts[axis]);
        lo.push_back(static_cast<int32_t>(from.back()));
        hi.push_back(static_cast<int32_t>(to.back()));
        some = some && from.back() < to.back();
      }
      // Scratch from a tile before, of any content.
      const auto scratch = aligned(prepared.scratch_bytes);
      std::fill_n(reinterpret_cast<unsigned char*>(scratch.get()), prepared.scratch_bytes, 0xff);
      const TileArgs args{prepared.state.get(), pointers.data(), result.data(), lo.data(), hi.data(), scratch.get()};
      if (const char* message = prepared.run(args)) fail(message);
      if (!some) continue;
      index = from;
      do {
        int64_t offset = 0;
        for (size_t axis = 0; axis < rank; ++axis) offset += index[axis] * output.strides[axis];
        written[static_cast<size_t>(offset)] = true;
      } while (next(index, from, to));
    }

    index = zero;
    for (size_t i = 0; i < size; ++i, next(index, zero, test.output)) {
      const double got = element_value(out_dtype, result.data(), i);
      if (!written[i]) {
        if (!std::isnan(got)) fail("wrote outside its box at " + show(index));
      } else if (!(std::abs(got - expected[i]) <= 1e-5 * largest + rounding_error(out_dtype, expected[i]))) {
        fail("got " + std::to_string(got) + " for " + std::to_string(expected[i]) + " at " + show(index) +
             " where the largest is " + std::to_string(largest));
      }
    }
  }
  return failures;
}

// Runs `random_case(seed)` for as many seeds as the command line asks for, or `cases`. Arguments: number of cases, first seed.
// Returns the number of seeds that fail.
template <class RandomCase>
int run_cases(const char* kernel, int argc, char** argv, int64_t cases, RandomCase random_case) {
  if (argc > 1) cases = std::atoll(argv[1]);
  const int64_t first = argc > 2 ? std::atoll(argv[2]) : 1;
  int failures = 0;
  for (int64_t seed = first; seed < first + cases; ++seed) {
    const int failed = random_case(static_cast<uint64_t>(seed));
    if (failed > 0) std::fprintf(stderr, "  (seed %lld, %d elements)\n", static_cast<long long>(seed), failed);
    failures += failed > 0;
  }
  std::printf("%s: %lld random cases, %d failures\n", kernel, static_cast<long long>(cases), failures);
  return failures;
}

// Whether preparing the op is refused with a GraphError by every target.
inline bool refuses(const char* kernel, const std::vector<TensorView>& inputs, const TensorView& output,
                    const std::vector<int64_t>& params) {
  for (const Target target : available_targets()) {
    try {
      find_kernel(target, kernel).prepare(OpSpec{inputs, output, params});
      return false;
    } catch (const GraphError&) {
    }
  }
  return true;
}

inline TensorView dense_view(const Index& shape, DType dtype = DType::kF32) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
  }
  return view;
}

}  // namespace aspen::cpu::testing
