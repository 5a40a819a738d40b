// Blocks of a product, one after the other, whose operands a warp beside the warpgroups copies (tensor_copy.h).
//
// That warp never waits for a block to end: while the warpgroups store one, chunks of the next are on their way. Nor do the
// warpgroups wait for each other. A stage has two barriers: `arrived`, as everywhere, and `read`, on which each warp arrives when
// it has multiplied what lies there. Sums pass through shared memory that each warp has for itself, beside the stages.
//
// Stages are filled in turn. So of stage s the n-th filling is phase n of both of its barriers.
#pragma once

#include "product.h"
#include "tensor_copy.h"

namespace aspen::cuda {

// Warpgroups that a warp beside them feeds, where maps describe both operands and the depth is not shared by a cluster; else
// warpgroups as any.
template <class Kind, int kRows, int kColumns, bool kAlongDepth, int kStages>
struct StreamedCore : WgmmaCore<Kind, kRows, kColumns, kAlongDepth, kStages> {};

template <class Core>
inline constexpr bool kIsStreamed = false;
template <class Kind, int kRows, int kColumns, bool kAlongDepth, int kStages>
inline constexpr bool kIsStreamed<StreamedCore<Kind, kRows, kColumns, kAlongDepth, kStages>> = true;

// Sums of a warp on their way out: 16 rows of a part of its columns. Lines are apart as in store_sums (product.h), and by an odd
// number where they are stored down the columns.
struct Passing {
  static constexpr int kRows = 16, kColumns = 32, kStride = kColumns + 8, kStrideDown = kColumns + 1;
  alignas(32) float sums[kRows * kStride];  // [kRows, kColumns], lines kStride or kStrideDown apart
};

template <class Core, int kStages>
struct StreamMemory {
  static constexpr int kWarps = Core::kThreads / kWarp;
  typename ProductMemory<Core, kStages>::Stage stages[kStages];  // [kStages] of a chunk's rows and columns
  Passing passing[kWarps];                                       // [kWarps] of [Passing::kRows, Passing::kColumns]
  Barrier arrived[kStages], read[kStages];
};

// The memory of blocks of a product, streamed, copied in boxes, or by threads, and how many threads there are with the warp that
// copies.
template <class Core, bool kMapped, int kSlices>
struct BlocksMemory {
  static constexpr bool kStreams = kMapped && kSlices == 1 && kIsStreamed<Core>;
  static constexpr int kThreads = Core::kThreads + (kStreams ? kWarp : 0);
  using Threads = ProductMemory<Core, Core::kStages>;
  using Boxes = TensorMemory<Core, Core::kStages>;
  using Type = typename Either<kStreams, StreamMemory<Core, Core::kStages>, typename Either<kMapped, Boxes, Threads>::Type>::Type;
};

// A stage, and the parity of the phase in which it is filled.
template <int kStages>
struct Turn {
  int stage = 0, parity = 0;
  ASPEN_DEVICE void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The work of the warp beside, by one of its threads: it copies chunk after chunk of all blocks into stages.
// rows_: [num_rows(), depth()], columns_: [depth(), num_columns()] of a block -> stages, each with a chunk of both.
template <class Core, int kStages, class Blocks>
class Producer {
 public:
  using Memory = StreamMemory<Core, kStages>;
  using Copies = BoxCopies<Core::kThreads, kStages>;
  ASPEN_DEVICE Producer(const Block<Core::kThreads>& block, Copies& copies, Memory& memory, const Blocks& first)
      : block_(block), copies_(copies), memory_(memory), blocks_(first), rows_(first.rows()), columns_(first.columns()) {}

#ifdef __CUDACC__
  ASPEN_DEVICE void run() {
    while (more_) {
      // What was here before is read. A new barrier counts as if a phase of parity 1 were over, so first fillings wait for
      // nothing.
      memory_.read[turn_.stage].wait(turn_.parity ^ 1);
      begin_next();
    }
  }
#else
  // The host, which has one thread for all, copies as soon as a stage may be filled.
  void play() {
    while (more_ && memory_.read[turn_.stage].is_over(turn_.parity ^ 1)) begin_next();
  }
  bool is_over() const { return !more_; }
#endif

 private:
  ASPEN_DEVICE void begin_next() {
    copy_chunk<Core>(block_, copies_, memory_.stages[turn_.stage], rows_, columns_, chunk_, turn_.stage);
    turn_.next();
    if (++chunk_ * Core::kDepth < blocks_.depth()) return;
    chunk_ = 0;
    more_ = blocks_.advance();
    rows_ = blocks_.rows();
    columns_ = blocks_.columns();
  }

  const Block<Core::kThreads>& block_;
  Copies& copies_;
  Memory& memory_;
  Blocks blocks_;
  decltype(blocks_.rows()) rows_;
  decltype(blocks_.columns()) columns_;
  Turn<kStages> turn_;
  int chunk_ = 0;  // the next chunk's number in the block
  bool more_ = true;
};

// Calls store(row, column, sums, count) as store_sums (product.h) does, each warp for its own rows: part after part of the
// columns. core: [kRows, kColumns] -> passing: [kWarps] of [kTall, kWide] at a time -> sums: [kRun] at (row, column).
template <int kRunOrNone, class Core, class Store>
ASPEN_DEVICE void store_by_warps(Block<Core::kThreads>& block, Core& core, Passing* passing, int num_rows, int num_columns,
                                 const Store& store) {
  constexpr bool kDown = kRunOrNone == 0;
  constexpr int kRun = kDown ? 1 : kRunOrNone, kStride = kDown ? Passing::kStrideDown : Passing::kStride;
  constexpr int kWide = Passing::kColumns, kTall = Passing::kRows, kAcross = kWide / kRun;
  static_assert(kWide % kRun == 0 && Core::kColumns % kWide == 0);
  // The program of a store is spelt out once, not for each part.
  ASPEN_UNROLL_BY(1)
  for (int part = 0; part < Core::kColumns / kWide; ++part) {
    core.template each_of<kWide>(block, part, [&](int row, int column, float sum) {
      passing[row / kTall].sums[row % kTall * kStride + column % kWide] = sum;
    });
    block.sync_warps();
    block.each_thread([&](int thread) {
      const float* const own = passing[thread / kWarp].sums;
      for (int run = thread % kWarp; run < kTall * kAcross; run += kWarp) {
        const int row = kDown ? run % kTall : run / kAcross, column = kDown ? run / kTall : run % kAcross * kRun;
        const int whole_row = thread / kWarp * kTall + row, whole_column = part * kWide + column;
        if (whole_row >= num_rows || whole_column >= num_columns) continue;
        const auto sums = load_vector<kRun>(own + row * kStride + column);
        store(whole_row, whole_column, sums.elements, min_of(kRun, num_columns - whole_column));
      }
    });
    block.sync_warps();
  }
}

// Multiplies and stores one block after the other. `Blocks` is at one of them: rows(), columns(), num_rows(), num_columns() and
// depth() are what multiply_tile takes, store(row, column, sums, count) what it calls; advance() goes on to the next, or says
// that there is none. rows(): [num_rows(), depth()], columns(): [depth(), num_columns()] -> sums: [num_rows(), num_columns()].
//
// All warps of the thread block come here together, and leave together.
template <int kRun, int kSlices, class Core, int kStages, class Blocks>
ASPEN_DEVICE void multiply_blocks(StreamMemory<Core, kStages>& memory, const Blocks& first) {
  static_assert(kSlices == 1);
  Block<Core::kThreads> block;
  block.each_thread([&](int thread) {
    if (thread != 0) return;
    for (Barrier& barrier : memory.read) barrier.begin(Core::kThreads / kWarp);
  });
  BoxCopies<Core::kThreads, kStages> copies(block, memory.arrived);  // tells of all barriers
  Producer<Core, kStages, Blocks> producer(block, copies, memory, first);
#ifdef __CUDACC__
  if (threadIdx.x >= Core::kThreads) {
    if (threadIdx.x == Core::kThreads) producer.run();
    return;
  }
#endif
  // A warp has multiplied what lies in a stage. Pairs with the wait of the thread that fills it again: no copy is begun before.
  const auto release = [&](int stage) {
    block.sync_warps();
    block.each_thread([&](int thread) {
      if (thread % kWarp == 0) memory.read[stage].arrive();
    });
#ifndef __CUDACC__
    producer.play();
#endif
  };
#ifndef __CUDACC__
  producer.play();
#endif
  Core core;
  Turn<kStages> turn;
  Blocks blocks = first;
  do {
    core.clear(block);
    int before = 0;  // the stage of the last chunk
    for (int k = 0; k < blocks.depth(); k += Core::kDepth) {
      copies.wait(turn.stage, turn.parity);
      core.multiply(block, memory.stages[turn.stage].rows, memory.stages[turn.stage].columns);
      core.template wait<Core::kInFlight>(block);
      if (Core::kInFlight == 0 || k > 0) release(Core::kInFlight == 0 ? turn.stage : before);
      before = turn.stage;
      turn.next();
    }
    core.template wait<0>(block);
    if (Core::kInFlight > 0) release(before);
    store_by_warps<kRun>(block, core, memory.passing, blocks.num_rows(), blocks.num_columns(),
                         [&](int row, int column, const float* sums, int count) { blocks.store(row, column, sums, count); });
  } while (blocks.advance());
#ifndef __CUDACC__
  if (!producer.is_over()) __builtin_trap();
#endif
}

// Multiplies and stores without a warp beside: each block begins when the one before is stored.
template <int kRun, int kSlices, class Memory, class Blocks>
ASPEN_DEVICE void multiply_blocks(Memory& memory, Blocks blocks) {
  do {
    multiply_tile<kRun, kSlices>(
        memory, blocks.rows(), blocks.columns(), blocks.num_rows(), blocks.num_columns(), blocks.depth(),
        [&](int row, int column, const float* sums, int count) { blocks.store(row, column, sums, count); });
  } while (blocks.advance());
}

}  // namespace aspen::cuda
