// Where windows begin that integer operands place: for gather.h and scatter.h.
#pragma once

#include "elements.h"

namespace aspen::cuda {

// The index of an axis that no operand places: its window begins where the kernel's shape says.
struct NoIndex {};

// An index. Lanes of uint32 are numbers above those of int32, not below 0.
template <class Index, class Addresses>
ASPEN_DEVICE int64_t index_at(const Addresses& buffers, const int* point) {
  const uint32_t lane = Index::lane(buffers, point);
  if constexpr (kIsSame<typename Index::Stored, Plain<uint32_t>>) {
    return lane;
  } else {
    return static_cast<int32_t>(lane);
  }
}

// The window that fits and is the nearest to the index.
ASPEN_DEVICE int clamped(int64_t index, int last) { return static_cast<int>(index < 0 ? 0 : index > last ? last : index); }

}  // namespace aspen::cuda
