// Products whose rows are in groups, each with a matrix of its own: a thread computes an element by itself. It goes through the
// sizes of all groups, which are data, and sums over the depth in each group that holds its row: one or none, unless a size is
// negative.
//
// rows: [batch ..., rows, depth], matrices: [batch ..., groups, depth, columns], sizes: [batch ..., groups] -> [batch ..., rows,
// columns]. There are kBatch axes of the batch.
#pragma once

#include "elements.h"

namespace aspen::cuda {

struct RaggedDotShape {
  int groups, depth;
};

template <class Op, class Rows, class Matrices, class Sizes, RaggedDotShape kShape>
struct RaggedDot : EachElement<Op, RaggedDot<Op, Rows, Matrices, Sizes, kShape>, 1> {
  // at: [kBatch + 2], coordinates of the output -> the sum there, as a lane.
  static ASPEN_DEVICE uint32_t lane(const typename Op::Addresses& buffers, const int* at) {
    constexpr int kBatch = Op::kRank - 2;
    // Coordinates [batch ..., row, k], [batch ..., group, k, column] and [batch ..., group].
    int in_rows[kBatch + 2], in_matrices[kBatch + 3], in_sizes[kBatch + 1];
    for (int d = 0; d < kBatch; ++d) in_rows[d] = in_matrices[d] = in_sizes[d] = at[d];
    in_rows[kBatch] = at[kBatch];
    in_matrices[kBatch + 2] = at[kBatch + 1];
    float sum = 0;
    uint32_t end = 0;  // running sums wrap
    for (int group = 0; group < kShape.groups; ++group) {
      in_matrices[kBatch] = in_sizes[kBatch] = group;
      const auto begin = static_cast<int32_t>(end);
      end += Sizes::lane(buffers, in_sizes);
      if (at[kBatch] < begin || at[kBatch] >= static_cast<int32_t>(end)) continue;
      for (int k = 0; k < kShape.depth; ++k) {
        in_rows[kBatch + 1] = in_matrices[kBatch + 1] = k;
        sum += as_float(Rows::lane(buffers, in_rows)) * as_float(Matrices::lane(buffers, in_matrices));
      }
    }
    return as_bits(sum);
  }
};

}  // namespace aspen::cuda
