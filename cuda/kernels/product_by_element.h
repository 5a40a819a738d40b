// Products that no matrices describe: a thread computes an element by itself, and walks the summed axes one inside the other.
// left: [axes of the output ..., summed ...], right: likewise -> output. The axes have any order, and operands may lack some of
// the output's.
#pragma once

#include "elements.h"

namespace aspen::cuda {

struct SumShape {
  int rank;                           // summed axes
  int extents[kMostAxes];             // [rank]: elements along each of them
  Strides left, right;                // how far the output's axes move each operand
  Strides left_summed, right_summed;  // how far the summed axes move each operand
};

template <class Op, class Left, class Right, SumShape kShape>
struct ProductByElement : EachElement<Op, ProductByElement<Op, Left, Right, kShape>, 1> {
  using Addresses = typename Op::Addresses;

  // at: [Op::kRank] -> the sum at these coordinates, as a lane.
  static ASPEN_DEVICE uint32_t lane(const Addresses& buffers, const int* at) {
    float sum = 0;
    int summed[kMostAxes] = {};  // [kShape.rank]: coordinates along the summed axes
    walk<0>(buffers, at, summed, sum);
    return as_bits(sum);
  }

 private:
  // Adds the products of all elements along the summed axes from kAxis on.
  template <int kAxis>
  static ASPEN_DEVICE void walk(const Addresses& buffers, const int* at, int* summed, float& sum) {
    if constexpr (kAxis == kShape.rank) {
      const int64_t left = place_of<kShape.left>(at) + place_of<kShape.left_summed>(summed);
      const int64_t right = place_of<kShape.right>(at) + place_of<kShape.right_summed>(summed);
      sum += as_float(Left::load(buffers.inputs[0], left)) * as_float(Right::load(buffers.inputs[1], right));
    } else {
      constexpr int kExtent = kShape.extents[kAxis];
      for (summed[kAxis] = 0; summed[kAxis] < kExtent; ++summed[kAxis]) walk<kAxis + 1>(buffers, at, summed, sum);
    }
  }
};

}  // namespace aspen::cuda
