// An op whose thread blocks also reduce what they have written: partial reductions for the further output (Bolt, section 3.1.1).
// A block reads back its own elements, which its cache still holds. Threads have neighbouring partial results; each combines the
// elements behind one in their order, so that the bits depend on no scheduling.
#pragma once

#include "elements.h"

namespace aspen::cuda {

struct PartialReduceShape {
  int rank;             // of the result
  int unit[kMostAxes];  // indices of the result behind one partial result, along each axis
  Strides result, partial;
};

// `Part` is the op's own kernel. `Stored` and `Partial` store elements of the result and of the further output.
template <class Part, class Stored, class Partial, uint32_t (*kCombine)(uint32_t, uint32_t), uint32_t kStart,
          PartialReduceShape kShape>
struct PartialReduce : Part {
  using Addresses = typename Part::Addresses;
  using Memory = typename Part::Memory;
  static constexpr int kThreads = Part::kThreads, kRank = kShape.rank;

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    constexpr PartialReduceShape shape = kShape;
    Part::tile(buffers, box, memory);
    Block<kThreads> block;
    block.sync();  // the block has written its box
    int32_t units[2 * kRank];
    ASPEN_UNROLL for (int d = 0; d < kRank; ++d) {
      units[d] = box[d] / shape.unit[d];
      units[kRank + d] = box[kRank + d] / shape.unit[d];
    }
    each_element<kRank>(block, units, [&](const int* at) {
      Partial::store(buffers.further[0], place_of<kShape.partial>(at), combined(buffers, at));
    });
  }

 private:
  // What the elements behind one partial result come to.
  static ASPEN_DEVICE uint32_t combined(const Addresses& buffers, const int* at) {
    constexpr PartialReduceShape shape = kShape;
    int64_t first = 0;
    int count = 1;
    ASPEN_UNROLL for (int d = 0; d < kRank; ++d) {
      first += int64_t{at[d]} * shape.unit[d] * shape.result.of[d];
      count *= shape.unit[d];
    }
    uint32_t found = kStart;
    for (int element = 0; element < count; ++element) {
      int64_t place = first;
      int rest = element;
      ASPEN_UNROLL for (int d = kRank - 1; d >= 0; --d) {
        if (shape.unit[d] == 1) continue;
        place += int64_t{rest % shape.unit[d]} * shape.result.of[d];
        rest /= shape.unit[d];
      }
      found = kCombine(found, Stored::load(buffers.output, place));
    }
    return found;
  }
};

}  // namespace aspen::cuda
