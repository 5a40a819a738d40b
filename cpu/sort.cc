// The kernel "sort": the stable order of elements along an axis by one or more keys, or the elements themselves in that order.
//
// Keys become unsigned integers of the same order. Pairs of a key and its place are sorted from the last key to the first: few
// by comparisons, many by counting digits. -0 and 0 are the same and NaNs are behind all numbers, as jax.lax.sort says; or all
// bits count, as jax.lax.top_k does.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "box.h"
#include "numbers.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_sort(const OpSpec& spec);

namespace {

// Writes pairs[p] = key of element order[p] << 32 | p for all elements from `first` on, `stride` elements apart.
using ReadKeys = void (*)(const std::byte* first, int64_t stride, const uint32_t* order, int64_t extent, uint32_t flip,
                          bool total, uint64_t* pairs);
// Writes elements order[0], order[1], ... `count` of them.
using WriteElements = void (*)(const std::byte* first, int64_t stride, const uint32_t* order, int64_t count, std::byte* to,
                               int64_t to_stride);

struct Key {
  int64_t strides[kMaxRank];
  int64_t element_bytes;
  ReadKeys read;
};

constexpr int kMostKeys = 4;
// Of up to 32 bits.
constexpr DTypes kSorted = {DType::kBool, DType::kI8,  DType::kI16, DType::kI32,  DType::kU8,
                            DType::kU16,  DType::kU32, DType::kF16, DType::kBF16, DType::kF32};

struct SortState final : OpState {
  TensorView output;
  int axis = 0;
  int64_t extent = 0;
  int num_keys = 0;
  Key keys[kMostKeys] = {};
  WriteElements write = nullptr;  // of the first key; null where the order is wanted
  uint32_t flip = 0;              // all bits where the largest are first
  bool total = false;
};

constexpr uint32_t kSign = 0x80000000u;

// An unsigned integer that is larger for a larger number.
template <class T>
ASPEN_INLINE uint32_t key_of(T x, bool total) {
  if constexpr (std::is_same_v<T, float> || Narrow<T>) {
    const float number = to_number(x);
    uint32_t bits = std::bit_cast<uint32_t>(number);
    if (!total) {
      if (number != number) return ~0u;
      if (number == 0) bits = 0;
    }
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<uint32_t>(static_cast<int32_t>(x)) ^ kSign;
  } else {
    return static_cast<uint32_t>(x);
  }
}

template <class T>
void read_keys(const std::byte* first, int64_t stride, const uint32_t* order, int64_t extent, uint32_t flip, bool total,
               uint64_t* pairs) {
  const T* const x = reinterpret_cast<const T*>(first);
  for (int64_t p = 0; p < extent; ++p) {
    const uint32_t key = key_of(x[order[p] * stride], total) ^ flip;
    pairs[p] = static_cast<uint64_t>(key) << 32 | static_cast<uint64_t>(p);
  }
}

template <class T>
void write_elements(const std::byte* first, int64_t stride, const uint32_t* order, int64_t count, std::byte* to,
                    int64_t to_stride) {
  const T* const x = reinterpret_cast<const T*>(first);
  T* const out = reinterpret_cast<T*>(to);
  for (int64_t p = 0; p < count; ++p) out[p * to_stride] = x[order[p] * stride];
}

// So many are sorted by comparisons faster than digit by digit.
constexpr int64_t kFew = 256;
constexpr int kDigitBits = 8;
constexpr int kDigits = 32 / kDigitBits;
constexpr int kValues = 1 << kDigitBits;

// Sorts pairs by their keys and leaves those of equal keys in order. Returns where the sorted ones are: `pairs` or `other`.
uint64_t* sort_by_digits(uint64_t* pairs, uint64_t* other, int64_t count) {
  std::array<std::array<uint32_t, kValues>, kDigits> counts = {};
  const auto digit = [](uint64_t pair, int d) __attribute__((always_inline)) {
    return static_cast<size_t>(pair >> (32 + d * kDigitBits)) & (kValues - 1);
  };
  for (int64_t p = 0; p < count; ++p) {
    for (int d = 0; d < kDigits; ++d) ++counts[static_cast<size_t>(d)][digit(pairs[p], d)];
  }
  for (int d = 0; d < kDigits; ++d) {
    auto& places = counts[static_cast<size_t>(d)];
    if (static_cast<int64_t>(places[digit(pairs[0], d)]) == count) continue;  // all have the same digit
    uint32_t before = 0;
    for (uint32_t& place : places) before += std::exchange(place, before);
    for (int64_t p = 0; p < count; ++p) other[places[digit(pairs[p], d)]++] = pairs[p];
    std::swap(pairs, other);
  }
  return pairs;
}

// The first `count` in order of `extent` pairs.
uint64_t* sort_pairs(uint64_t* pairs, uint64_t* other, int64_t extent, int64_t count) {
  if (count <= extent / 8) {
    // A selection of few among many: what is behind the last of them is dropped, and when many are left, most of those.
    uint64_t last = ~uint64_t{0};
    int64_t kept = 0;
    const auto drop = [&] {
      std::nth_element(pairs, pairs + count - 1, pairs + kept);
      kept = count;
      last = pairs[count - 1];
    };
    for (int64_t p = 0; p < extent; ++p) {
      pairs[kept] = pairs[p];
      kept += pairs[p] <= last;
      if (kept == 4 * count) drop();
    }
    drop();
    std::sort(pairs, pairs + count);
    return pairs;
  }
  if (extent > kFew) return sort_by_digits(pairs, other, extent);
  std::sort(pairs, pairs + extent);
  return pairs;
}

const char* run_sort(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const SortState*>(args.state);
  const TensorView& output = state.output;
  const int axis = state.axis;
  const int64_t extent = state.extent, element_bytes = size_of(output.dtype);
  const int64_t wanted = args.hi[axis] - args.lo[axis], out_stride = output.strides[axis];
  auto* const pairs = reinterpret_cast<uint64_t*>(args.scratch);
  auto* const other = pairs + extent;
  auto* order = reinterpret_cast<uint32_t*>(other + extent);
  auto* next = order + extent;
  Odometer line = {.rank = output.rank, .at = {}, .lo = {}, .hi = {}};
  for (int d = 0; d < output.rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
    line.lo[d] = args.lo[d];
    line.hi[d] = d == axis ? args.lo[d] + 1 : args.hi[d];
  }
  line.begin();
  do {
    for (int64_t p = 0; p < extent; ++p) order[p] = static_cast<uint32_t>(p);
    const std::byte* first = nullptr;  // of the line, in the key
    for (int k = state.num_keys - 1; k >= 0; --k) {
      const Key& key = state.keys[k];
      int64_t from = 0;
      for (int d = 0; d < output.rank; ++d) from += d == axis ? 0 : line.at[d] * key.strides[d];
      first = static_cast<const std::byte*>(args.inputs[k]) + from * key.element_bytes;
      key.read(first, key.strides[axis], order, extent, state.flip, state.total, pairs);
      const int64_t count = k == 0 ? args.hi[axis] : extent;
      const uint64_t* const sorted = sort_pairs(pairs, other, extent, count);
      for (int64_t p = 0; p < count; ++p) next[p] = order[static_cast<uint32_t>(sorted[p])];
      std::swap(order, next);
    }
    int64_t to = 0;
    for (int d = 0; d < output.rank; ++d) to += line.at[d] * output.strides[d];
    std::byte* const out = static_cast<std::byte*>(args.output) + to * element_bytes;
    const uint32_t* const found = order + args.lo[axis];
    if (state.write == nullptr) {
      for (int64_t p = 0; p < wanted; ++p) reinterpret_cast<int32_t*>(out)[p * out_stride] = static_cast<int32_t>(found[p]);
    } else {
      state.write(first, state.keys[0].strides[axis], found, wanted, out, out_stride);
    }
  } while (line.next());
  return nullptr;
}

}  // namespace

PreparedOp prepare_sort(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& first = reader.input(0, "key 0", {.rank = {1, kMaxRank}, .dtypes = kSorted});
  const TensorView& output = reader.output({.rank = first.rank});
  check_range(static_cast<int64_t>(spec.inputs.size()), 1, kMostKeys, "the number of keys");
  auto state = std::make_unique<SortState>();
  state->axis = static_cast<int>(reader.integer(0, output.rank - 1, "the axis"));
  state->extent = first.shape[state->axis];
  const int64_t count = reader.integer(0, state->extent, "how many elements are wanted");
  const bool gives_order = reader.flag("whether the order is wanted");
  state->flip = reader.flag("whether the largest are first") ? ~0u : 0u;
  state->total = reader.flag("whether all bits count");
  reader.end_without_program();
  check_extent(output, "the output", state->axis, count);
  reader.output({.dtypes = gives_order ? DType::kI32 : first.dtype});
  state->output = output;
  state->num_keys = static_cast<int>(spec.inputs.size());
  for (int k = 0; k < state->num_keys; ++k) {
    const std::string what = "key " + std::to_string(k);
    const TensorView& key = reader.input(static_cast<size_t>(k), what, {.rank = output.rank, .dtypes = kSorted});
    for (int d = 0; d < output.rank; ++d) {
      check_extent(key, what, d, d == state->axis ? state->extent : output.shape[d]);
      state->keys[k].strides[d] = used_stride(key, d);
    }
    state->keys[k].element_bytes = size_of(key.dtype);
    state->keys[k].read = visit_number(key.dtype, []<class T>(T) -> ReadKeys { return read_keys<T>; });
  }
  if (!gives_order) {
    state->write = visit_number(output.dtype, []<class T>(T) -> WriteElements { return write_elements<T>; });
  }
  const size_t scratch = static_cast<size_t>(state->extent) * 2 * (sizeof(uint64_t) + sizeof(uint32_t));
  return {std::move(state), run_sort, scratch};
}

}  // namespace aspen::cpu::ASPEN_TARGET
