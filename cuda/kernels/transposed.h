// An op of images whose result lies in another order of axes, as NCHW callers want it (Bolt, section 3.2.3). What is generated
// stores an element where it belongs. So the op's own tile does the rest, of the box in the op's own order.
#pragma once

#include "boxes.h"
#include "elements.h"

namespace aspen::cuda {

// Axis i of the output is axis kOrder.of[i] of the op's result.
template <class Part, Axes kOrder>
struct Transposed : Part {
  static constexpr int kRank = Part::kRank;
  struct Memory {
    typename Part::Memory own;
    int32_t box[2 * kRank];  // not in registers, of which a whole block would have to keep it
  };

  static ASPEN_DEVICE void tile(const typename Part::Addresses& buffers, const int32_t* box, Memory& memory) {
    Block<Part::kThreads> block;
    block.each_thread([&](int thread) {
      constexpr Axes order = kOrder;
      if (thread != 0) return;
      ASPEN_UNROLL for (int axis = 0; axis < kRank; ++axis) {
        memory.box[order.of[axis]] = box[axis];
        memory.box[kRank + order.of[axis]] = box[kRank + axis];
      }
    });
    block.sync();
    Part::tile(buffers, memory.box, memory.own);
  }
};

}  // namespace aspen::cuda
