// The index operands of gather and scatter: integers that say where windows begin, an operand for each component of an index.
// They are walked by some axes of another tensor: of the output of a gather, of the updates of a scatter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "spec_reader.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// Walks are resolved this many points at a time.
inline constexpr int64_t kIndexChunk = 256;

// `count` indices as int64. A uint64 beyond its range becomes its largest, which is as far beyond any tensor.
inline void load_indices(DType dtype, const void* from, int64_t stride, int64_t count, int64_t* to) noexcept {
  const auto load_as = [&]<class T>(T) {
    const auto* at = static_cast<const T*>(from);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, uint64_t>) {
        to[i] = static_cast<int64_t>(std::min<uint64_t>(at[i * stride], std::numeric_limits<int64_t>::max()));
      } else {
        to[i] = at[i * stride];
      }
    }
  };
  switch (dtype) {
    case DType::kI8:
      return load_as(int8_t{});
    case DType::kU8:
      return load_as(uint8_t{});
    case DType::kI16:
      return load_as(int16_t{});
    case DType::kU16:
      return load_as(uint16_t{});
    case DType::kI32:
      return load_as(int32_t{});
    case DType::kU32:
      return load_as(uint32_t{});
    case DType::kI64:
      return load_as(int64_t{});
    default:
      return load_as(uint64_t{});
  }
}

struct IndexOperand {
  DType dtype = DType::kI32;
  int64_t strides[kMaxRank] = {};  // along the axes of the tensor that walks it
  int axis = -1;                   // of the tensor that has the windows: along it they begin where the operand says

  // The indices at `count` points: the first at coordinate `at` of the walking tensor, the next ones along its axis `inner` (-1:
  // there is one).
  void load(const void* data, const int64_t* at, int rank, int inner, int64_t count, int64_t* to) const noexcept {
    int64_t first = 0;
    for (int d = 0; d < rank; ++d) first += at[d] * strides[d];
    load_indices(dtype, static_cast<const std::byte*>(data) + first * size_of(dtype), inner < 0 ? 0 : strides[inner], count, to);
  }
};

// The inputs from `first` on. Axes `index_axes` of `walker` walk them. `components` has for each axis of the tensor with the
// windows the operand that says where they begin along it, or -1. Throws GraphError.
inline std::vector<IndexOperand> read_index_operands(const SpecReader& reader, size_t first, const TensorView& walker,
                                                     std::span<const int64_t> index_axes, std::span<const int64_t> components) {
  std::vector<IndexOperand> operands(reader.inputs_from(first).size());
  for (size_t k = 0; k < operands.size(); ++k) {
    const std::string what = "index operand " + std::to_string(k);
    const int rank = static_cast<int>(index_axes.size());
    const TensorView& index = reader.input(first + k, what, {.rank = rank, .dtypes = kIntegers});
    operands[k].dtype = index.dtype;
    for (int d = 0; d < rank; ++d) {
      const int64_t walked_by = index_axes[static_cast<size_t>(d)];
      check_extent(index, what, d, walker.shape[walked_by]);
      operands[k].strides[walked_by] = used_stride(index, d);
    }
  }
  for (size_t axis = 0; axis < components.size(); ++axis) {
    const int64_t k = components[axis];
    check_range(k, -1, static_cast<int64_t>(operands.size()) - 1, "the index operand of axis " + std::to_string(axis));
    if (k < 0) continue;
    int& taken = operands[static_cast<size_t>(k)].axis;
    if (taken >= 0) throw GraphError("index operand " + std::to_string(k) + " has two axes");
    taken = static_cast<int>(axis);
  }
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].axis < 0) throw GraphError("index operand " + std::to_string(k) + " has no axis");
  }
  return operands;
}

// Which axes of a tensor walk something: those that walk the index operands, and those that walk a window.
struct WalkingAxes {
  bool indexed[kMaxRank] = {};
  bool windowed[kMaxRank] = {};

  explicit WalkingAxes(std::span<const int64_t> index_axes) {
    for (const int64_t axis : index_axes) indexed[axis] = true;
  }

  // Each axis walks one of the window's at most.
  void add(int64_t walk, const TensorView& walker, const std::string& what) {
    check_range(walk, 0, walker.rank - 1, "the axis that walks " + what);
    if (windowed[walk]) throw GraphError("axis " + std::to_string(walk) + " walks " + what + " and another axis");
    windowed[walk] = true;
  }

  void check_all(const TensorView& walker, const std::string& what) const {
    for (int axis = 0; axis < walker.rank; ++axis) {
      if (!indexed[axis] && !windowed[axis]) throw GraphError("axis " + std::to_string(axis) + " of " + what + " walks nothing");
    }
  }
};

}  // namespace aspen::cpu::ASPEN_TARGET
