// A tile of a product or convolution by a cluster of thread blocks. Each sums a slice of the depth; then each adds up a share of
// the tile's sums, out of the shared memory of all (store_sums in product.h). The order of adding is that of the slices, so the
// same bits come out each time; no partial sum goes to global memory, and nothing is launched to add them.
//
// sums: [kSlices, output ...], a slice for each block -> [output ...].
#pragma once

#include "cluster.h"
#include "tile.h"

namespace aspen::cuda {

// Ends a sum of the whole where a tile of slices asks for it, whose output has the slices as its first axis.
// at: [slice, output's coordinates ...] -> Op's: [output's coordinates ...].
template <class Op>
struct SliceOf : Op {
  static constexpr int kRank = Op::kRank + 1;
  static ASPEN_DEVICE void finish(const typename Op::Addresses& buffers, const int* at, uint32_t own) {
    Op::finish(buffers, at + 1, own);
  }
  template <class Own>
  static ASPEN_DEVICE void run(const typename Op::Addresses& buffers, const int* at, const Own& own) {
    Op::run(buffers, at + 1, own);
  }
};

// A Tile<SliceOf<Op>, ...> of kSlices blocks.
template <class Op, class Tile>
struct SplitSum : Tile {
  static constexpr int kRank = Op::kRank, kOwnRank = Tile::kRank;
  static_assert(kOwnRank == kRank + 1 && Op::kSlices > 1);
  struct Memory {
    typename Tile::Memory own;
    int32_t box[2 * kOwnRank];  // [2, kOwnRank]; not in registers, of which a whole block would have to keep it
  };

  // box: [2, kRank] of the output -> memory.box: [2, kOwnRank], whose first axis is this block's slice.
  static ASPEN_DEVICE void tile(const typename Op::Addresses& buffers, const int32_t* box, Memory& memory) {
    const int slice = Cluster<Op::kSlices>::rank();
    Block<Tile::kThreads> block;
    block.each_thread([&](int thread) {
      if (thread >= 2 * kOwnRank) return;
      const int axis = thread % kOwnRank, end = thread / kOwnRank;
      memory.box[thread] = axis == 0 ? slice + end : box[end * kRank + axis - 1];
    });
    block.sync();
    Tile::tile(buffers, memory.box, memory.own);
  }
};

}  // namespace aspen::cuda
