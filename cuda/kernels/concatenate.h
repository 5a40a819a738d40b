// Concatenation: each element lies in one of the pieces, and so does a run of adjacent ones where all pieces are made of such.
// A tile is any box of the output, whatever pieces it cuts: a thread chooses an address, then all load alike.
#pragma once

#include "elements.h"

namespace aspen::cuda {

struct ConcatenateShape {
  int axis;
  int run;  // adjacent elements at once
};

// The part of the output from kBegin to kEnd along the axis.
template <int kBegin_, int kEnd_, class Input_>
struct Piece {
  static constexpr int kBegin = kBegin_, kEnd = kEnd_;
  using Input = Input_;
};

template <class Op, ConcatenateShape kShape, class First, class... Rest>
struct Concatenate : EachElement<Op, Concatenate<Op, kShape, First, Rest...>, kShape.run> {
  using Addresses = typename Op::Addresses;
  using Stored = typename First::Input::Stored;
  using Word = typename Stored::Word;

  static ASPEN_DEVICE uint32_t lane(const Addresses& buffers, const int* at) {
    return Stored::load(address<First, Rest...>(buffers, at), 0);
  }
  static ASPEN_DEVICE Run<Stored, kShape.run> run(const Addresses& buffers, const int* at) {
    return {load_vector<kShape.run>(address<First, Rest...>(buffers, at))};
  }

 private:
  template <class Own, class... Others>
  static ASPEN_DEVICE const Word* address(const Addresses& buffers, const int* at) {
    if constexpr (sizeof...(Others) > 0) {
      if (at[kShape.axis] >= Own::kEnd) return address<Others...>(buffers, at);
    }
    int from[Op::kRank];
    ASPEN_UNROLL for (int d = 0; d < Op::kRank; ++d) from[d] = at[d] - (d == kShape.axis ? Own::kBegin : 0);
    return Own::Input::address(buffers, from);
  }
};

}  // namespace aspen::cuda
