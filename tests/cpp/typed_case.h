// Runs one op on operands of any dtype, on random boxes of its output, on every target that this machine has. The output and the
// scratch memory are poisoned before, and what lies outside the boxes must stay poisoned.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "half.h"
#include "kernel_case.h"

namespace aspen::cpu::testing {

// The value of an element; 64-bit integers are only ever copied.
inline double value_of(DType dtype, const std::byte* element) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, element, sizeof value);
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::kBool:
      return read(uint8_t{}) != 0;
    case DType::kI8:
      return read(int8_t{});
    case DType::kI16:
      return read(int16_t{});
    case DType::kI32:
      return read(int32_t{});
    case DType::kI64:
      return read(int64_t{});
    case DType::kU8:
      return read(uint8_t{});
    case DType::kF16:
    case DType::kBF16:
      return half_value(dtype, static_cast<uint16_t>(read(uint16_t{})));
    case DType::kU16:
      return read(uint16_t{});
    case DType::kU32:
      return read(uint32_t{});
    case DType::kU64:
      return read(uint64_t{});
    case DType::kF32:
      return read(float{});
    case DType::kF64:
      return read(double{});
  }
  return 0;
}

// An operand in a buffer of exactly the bytes that its view spans.
struct TypedOperand {
  TensorView view;
  std::vector<std::byte> buffer;
  int64_t origin = 0;  // in elements

  const std::byte* data() const { return buffer.data() + origin * size_of(view.dtype); }
  const std::byte* element(std::span<const int64_t> index) const {
    int64_t offset = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * view.strides[axis];
    return data() + offset * size_of(view.dtype);
  }
  double at(std::span<const int64_t> index) const { return value_of(view.dtype, element(index)); }
  double at(std::initializer_list<int64_t> index) const { return at(std::span(index)); }

  // Random elements: floats are whole numbers in [-limit, limit] if `limit` is given, else normal; integers any.
  static TypedOperand make(DType dtype, const Index& shape, const Index& order, const Index& steps, Random& random, int limit) {
    const Operand layout = Operand::stored(shape, order, steps, random);
    TypedOperand operand;
    operand.view = layout.view;
    operand.view.dtype = dtype;
    operand.origin = layout.origin;
    operand.buffer.resize(layout.buffer.size() * static_cast<size_t>(size_of(dtype)));
    for (size_t i = 0; i < layout.buffer.size(); ++i) {
      std::byte* element = operand.buffer.data() + i * static_cast<size_t>(size_of(dtype));
      const float value = limit > 0 ? static_cast<float>(random.integer(-limit, limit)) : random.normal();
      if (dtype == DType::kF32) {
        std::memcpy(element, &value, sizeof value);
      } else if (is_half(dtype)) {
        const uint16_t bits = half_bits(dtype, value);
        std::memcpy(element, &bits, sizeof bits);
      } else if (dtype == DType::kBool) {
        *element = std::byte{random.chance(0.5)};
      } else {
        const int64_t bits = limit > 0 ? random.integer(-limit, limit) : static_cast<int64_t>(random.engine()());
        std::memcpy(element, &bits, static_cast<size_t>(size_of(dtype)));
      }
    }
    return operand;
  }
  static TypedOperand dense(DType dtype, const Index& shape, Random& random, int limit = 0) {
    Index order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return make(dtype, shape, order, Index(shape.size(), 1), random, limit);
  }
  // Transposed, broadcast, reversed and stepped in any mixture.
  static TypedOperand any(DType dtype, const Index& shape, Random& random, int limit = 0) {
    if (random.chance(0.4)) return dense(dtype, shape, random, limit);
    Index order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    if (random.chance(0.5)) std::shuffle(order.begin(), order.end(), random.engine());
    Index steps;
    for (size_t i = 0; i < shape.size(); ++i) steps.push_back(random.pick<int64_t>({1, 1, 1, 1, -1, 2, -3, 0, 0}));
    return make(dtype, shape, order, steps, random, limit);
  }
};

// Says what is wrong with an element of the output, or nothing.
using Judge = std::function<std::string(const Index&, const std::byte*)>;

inline std::string differs(double got, double wanted) { return "got " + std::to_string(got) + " for " + std::to_string(wanted); }

// Returns the number of targets that failed; each failure is reported once.
inline int check_typed(const std::string& what, const char* kernel, const std::vector<TypedOperand>& inputs, DType dtype,
                       const Index& shape, const std::vector<int64_t>& params, Random& random, const Judge& judge) {
  constexpr auto kPoison = std::byte{0xa5};
  const size_t rank = shape.size();
  const TensorView output = dense_view(shape, dtype);
  const auto bytes = static_cast<size_t>(size_of(dtype));
  Index cuts;
  for (const int64_t extent : shape) cuts.push_back(random.chance(0.5) ? 0 : random.integer(0, extent));
  const uint64_t wanted = random.chance(0.6) ? ~uint64_t{0} : random.engine()();
  int failures = 0;
  for (const Target target : available_targets()) {
    bool failed = false;
    const auto fail = [&](const std::string& message) {
      if (!failed) std::fprintf(stderr, "%s on %s: %s\n", what.c_str(), std::string(name(target)).c_str(), message.c_str());
      failed = true;
    };
    std::vector<TensorView> views;
    std::vector<const void*> pointers;
    for (const TypedOperand& input : inputs) {
      views.push_back(input.view);
      pointers.push_back(input.data());
    }
    PreparedOp prepared;
    try {
      prepared = find_kernel(target, kernel).prepare(OpSpec{views, output, params});
    } catch (const GraphError& error) {
      fail(error.what());
      ++failures;
      continue;
    }
    const auto size = static_cast<size_t>(size_of_shape(shape));
    std::vector<std::byte> result(size * bytes, kPoison);
    std::vector<bool> written(size, false);
    for (uint64_t box = 0; box < (uint64_t{1} << rank); ++box) {
      if ((wanted >> box & 1) == 0) continue;
      std::vector<int32_t> lo(rank), hi(rank);
      Index from(rank), to(rank);
      bool some = true;
      for (size_t axis = 0; axis < rank; ++axis) {
        from[axis] = (box >> axis & 1) != 0 ? cuts[axis] : 0;
        to[axis] = (box >> axis & 1) != 0 ? shape[axis] : cuts[axis];
        lo[axis] = static_cast<int32_t>(from[axis]);
        hi[axis] = static_cast<int32_t>(to[axis]);
        some = some && from[axis] < to[axis];
      }
      const auto scratch = aligned(prepared.scratch_bytes);
      std::fill_n(scratch.get(), prepared.scratch_bytes, std::byte{0xff});
      const TileArgs args{prepared.state.get(), pointers.data(), result.data(), lo.data(), hi.data(), scratch.get()};
      if (const char* message = prepared.run(args)) fail(message);
      if (!some) continue;
      Index index = from;
      do {
        int64_t offset = 0;
        for (size_t axis = 0; axis < rank; ++axis) offset += index[axis] * output.strides[axis];
        written[static_cast<size_t>(offset)] = true;
      } while (next(index, from, to));
    }
    Index index(rank, 0);
    const Index zero = index;
    for (size_t i = 0; i < size; ++i, next(index, zero, shape)) {
      const std::byte* element = result.data() + i * bytes;
      if (!written[i]) {
        if (std::any_of(element, element + bytes, [&](std::byte b) { return b != kPoison; }))
          fail("wrote outside its box at " + show(index));
      } else if (const std::string wrong = judge(index, element); !wrong.empty()) {
        fail(wrong + " at " + show(index) + " of " + show(shape));
      }
    }
    failures += failed;
  }
  return failures;
}

}  // namespace aspen::cpu::testing
