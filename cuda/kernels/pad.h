// Padding: a thread an element, which is one of the input's or the padding value. A tile is any box of the output.
#pragma once

#include "elements.h"

namespace aspen::cuda {

// Elements of the input lie `step` apart, the first at `lo`; `extent` counts the places between them too.
struct PadShape {
  int rank;
  int lo[kMostAxes], step[kMostAxes], extent[kMostAxes];
};

template <class Op, class Input, class Value, PadShape kShape>
struct Pad : EachElement<Op, Pad<Op, Input, Value, kShape>, 1> {
  static ASPEN_DEVICE uint32_t lane(const typename Op::Addresses& buffers, const int* at) {
    constexpr PadShape shape = kShape;
    int from[kMostAxes] = {};
    ASPEN_UNROLL for (int d = 0; d < shape.rank; ++d) {
      const int place = at[d] - shape.lo[d];
      if (place < 0 || place >= shape.extent[d] || place % shape.step[d] != 0) return Value::lane(buffers, nullptr);
      from[d] = place / shape.step[d];
    }
    return Input::lane(buffers, from);
  }
};

}  // namespace aspen::cuda
