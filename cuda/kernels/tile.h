// What generated tile functions are made of beside products: elements in memory, and boxes of them.
#pragma once

#include <cstdint>

#include "block.h"
#include "kernel_shape.h"
#include "launch_order.h"
#include "scalar.h"

namespace aspen::cuda {

// A launch's addresses: element 0 of each input's view, of the output, and of further outputs where there are any.
template <int kInputs, int kFurther = 0>
struct Buffers;
template <int kInputs>
struct Buffers<kInputs, 0> {
  static constexpr int kNumAddresses = kInputs + 1, kNumTensors = 0;
  const void* inputs[kInputs];
  void* output;
};
template <int kInputs, int kFurther>
struct Buffers : Buffers<kInputs, 0> {
  static constexpr int kNumAddresses = kInputs + 1 + kFurther;
  void* further[kFurther];
};
// The same, and maps of operands that are copied in boxes (tensor_copy.h).
template <int kInputs, int kFurther = 0>
struct TensorBuffers : Buffers<kInputs, kFurther> {
  static constexpr int kNumTensors = 2;
  TensorMap maps[kNumTensors];
};

// Those of ops that are launched together.
template <class Addresses, int kOps>
struct Together {
  Addresses of[kOps];
};

// For the global op<n>_shape. Op::tensor is a function, not an array: of arrays of one name in two libraries the host would keep
// one.
template <class Op, int kMostOps = 1>
ASPEN_DEVICE constexpr KernelShape shape_of() {
  using Addresses = typename Op::Addresses;
  KernelShape shape{Op::kThreads, static_cast<int32_t>(sizeof(typename Op::Memory)), Addresses::kNumAddresses};
  shape.slices = Op::kSlices;
  shape.most_ops = kMostOps;
  if constexpr (Addresses::kNumTensors > 0) {
    shape.num_tensors = Addresses::kNumTensors;
    for (int number = 0; number < shape.num_tensors; ++number) shape.tensors[number] = Op::tensor(number);
  }
  if constexpr (requires { Op::product(); }) shape.product = Op::product();
  if constexpr (requires { Op::convolution(); }) shape.convolution = Op::convolution();
  return shape;
}

// Kernels in whose place a library computes.
template <class Op, LibraryProduct kProduct>
struct ByCublas : Op {
  static ASPEN_DEVICE constexpr LibraryProduct product() { return kProduct; }
};
template <class Op, LibraryConvolution kConvolution>
struct ByCudnn : Op {
  static ASPEN_DEVICE constexpr LibraryConvolution convolution() { return kConvolution; }
};

// How elements become lanes of 32 bits and back. A Word is as wide as an element.
template <class Stored>
struct Plain {
  using Word = Stored;
  static ASPEN_DEVICE uint32_t load(const void* data, int64_t index) {
    return static_cast<uint32_t>(static_cast<const Stored*>(data)[index]);
  }
  static ASPEN_DEVICE void store(void* data, int64_t index, uint32_t lane) {
    static_cast<Stored*>(data)[index] = static_cast<Stored>(lane);
  }
};
struct Bool {
  using Word = uint8_t;
  static ASPEN_DEVICE uint32_t load(const void* data, int64_t index) {
    return scalar::mask(static_cast<const uint8_t*>(data)[index] != 0);
  }
  static ASPEN_DEVICE void store(void* data, int64_t index, uint32_t lane) { static_cast<uint8_t*>(data)[index] = lane & 1; }
};
struct BFloat16 {
  using Word = uint16_t;
  static ASPEN_DEVICE uint32_t load(const void* data, int64_t index) {
    return static_cast<uint32_t>(static_cast<const uint16_t*>(data)[index]) << 16;
  }
  static ASPEN_DEVICE void store(void* data, int64_t index, uint32_t lane) {
    static_cast<uint16_t*>(data)[index] = narrowed(as_float(lane));
  }
  static ASPEN_DEVICE uint16_t narrowed(float value) { return narrowed_bf16(value); }
  static ASPEN_DEVICE uint32_t narrowed(float first, float second) { return narrowed_bf16x2(first, second); }
};
struct Float16 {
  using Word = uint16_t;
  static ASPEN_DEVICE uint32_t load(const void* data, int64_t index) {
    return as_bits(widened_f16(static_cast<const uint16_t*>(data)[index]));
  }
  static ASPEN_DEVICE void store(void* data, int64_t index, uint32_t lane) {
    static_cast<uint16_t*>(data)[index] = narrowed(as_float(lane));
  }
  static ASPEN_DEVICE uint16_t narrowed(float value) { return narrowed_f16(value); }
  static ASPEN_DEVICE uint32_t narrowed(float first, float second) { return narrowed_f16x2(first, second); }
};

// Adjacent elements, aligned as one.
template <class Element, int kCount>
struct alignas(sizeof(Element) * kCount) Vector {
  Element elements[kCount];
};
template <int kCount, class Element>
ASPEN_DEVICE Vector<Element, kCount> load_vector(const Element* from) {
#ifdef __CUDACC__
  return *reinterpret_cast<const Vector<Element, kCount>*>(from);
#else
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Vector<Element, kCount>) != 0) __builtin_trap();
  Vector<Element, kCount> vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
#endif
}

template <int kCount, class Element>
ASPEN_DEVICE void store_vector(Element* to, const Vector<Element, kCount>& vector) {
#ifdef __CUDACC__
  *reinterpret_cast<Vector<Element, kCount>*>(to) = vector;
#else
  if (reinterpret_cast<uintptr_t>(to) % sizeof vector != 0) __builtin_trap();
  std::memcpy(to, &vector, sizeof vector);
#endif
}

// Stores lanes as adjacent elements from number `index` on, at once; floats of 16 bits are rounded two by two.
template <class Stored, int kCount>
ASPEN_DEVICE void store_lanes(void* data, int64_t index, const uint32_t (&lanes)[kCount]) {
  auto* const to = static_cast<typename Stored::Word*>(data) + index;
  if constexpr (kCount % 2 == 0 && requires(float a) { Stored::narrowed(a, a); }) {
    Vector<uint32_t, kCount / 2> pairs;
    ASPEN_UNROLL for (int i = 0; i < kCount / 2; ++i) {
      pairs.elements[i] = Stored::narrowed(as_float(lanes[2 * i]), as_float(lanes[2 * i + 1]));
    }
    store_vector<kCount / 2>(reinterpret_cast<uint32_t*>(to), pairs);
  } else {
    Vector<typename Stored::Word, kCount> vector;
    ASPEN_UNROLL for (int i = 0; i < kCount; ++i) Stored::store(vector.elements, i, lanes[i]);
    store_vector<kCount>(to, vector);
  }
}

ASPEN_DEVICE int min_of(int a, int b) { return a < b ? a : b; }
ASPEN_DEVICE int max_of(int a, int b) { return a > b ? a : b; }

// Calls visit(at) for each element of a box, at its coordinates. Threads take neighbours along the last axis.
template <int kRank, int kThreads, class Visit>
ASPEN_DEVICE void each_element(Block<kThreads>& block, const int32_t* box, const Visit& visit) {
  int count = 1;
  ASPEN_UNROLL for (int d = 0; d < kRank; ++d) count *= box[kRank + d] - box[d];
  block.each_thread([&](int thread) {
    for (int element = thread; element < count; element += kThreads) {
      int at[kRank + 1];  // one too many, for a rank of 0
      int rest = element;
      ASPEN_UNROLL for (int d = kRank - 1; d >= 0; --d) {
        const int extent = box[kRank + d] - box[d];
        at[d] = box[d] + rest % extent;
        rest /= extent;
      }
      visit(static_cast<const int*>(at));
    }
  });
}

// The same by runs of kCount elements along the last axis, whose numbers are multiples of kCount: whole(at) for those that lie in
// the box, at the first of them, and one(at) for each element of those that it cuts.
template <int kRank, int kCount, int kThreads, class Whole, class One>
ASPEN_DEVICE void each_run(Block<kThreads>& block, const int32_t* box, const Whole& whole, const One& one) {
  constexpr int kLast = kRank - 1;
  int32_t runs[2 * kRank];
  ASPEN_UNROLL for (int i = 0; i < 2 * kRank; ++i) runs[i] = box[i];
  runs[kLast] = box[kLast] / kCount;
  runs[kRank + kLast] = (box[kRank + kLast] + kCount - 1) / kCount;
  each_element<kRank>(block, runs, [&](const int* run) {
    int at[kRank];
    ASPEN_UNROLL for (int d = 0; d < kLast; ++d) at[d] = run[d];
    at[kLast] = run[kLast] * kCount;
    if (at[kLast] >= box[kLast] && at[kLast] + kCount <= box[kRank + kLast]) {
      whole(static_cast<const int*>(at));
      return;
    }
    for (int i = 0; i < kCount; ++i, ++at[kLast]) {
      if (at[kLast] >= box[kLast] && at[kLast] < box[kRank + kLast]) one(static_cast<const int*>(at));
    }
  });
}

}  // namespace aspen::cuda
