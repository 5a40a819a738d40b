// A tile of a product: rows by columns, summed over a depth, by one thread block. Convolutions are products whose rows are
// gathered pixels (operands.h).
//
// Chunks of the depth pass through kStages buffers in shared memory: while one is multiplied, the next ones are being copied.
// What is multiplied how is the Core's: tensor cores by warps (MmaCore) or by warpgroups (WgmmaCore, warpgroup_mma.h), or float32
// without rounding of the inputs (FmaCore). In shared memory a column lies across rows of the chunk, or along the depth
// (kAlongDepth) where it does so in global memory.
#pragma once

#include <cstdint>

#include "block.h"
#include "cluster.h"
#include "tile.h"
#include "warp_mma.h"
#include "warpgroup_mma.h"

namespace aspen::cuda {

// Cores whose work is over when `multiply` returns.
struct SynchronousCore {
  static constexpr int kAlignment = 16;
  static constexpr int kInFlight = 0;           // chunks that are still being multiplied when the next one is begun
  static constexpr bool kReadsByProxy = false;  // whether the asynchronous proxy reads what was copied (warpgroup_mma.h)
  template <int kLeft, class Block>
  ASPEN_DEVICE void wait(Block&) {}
};

// Warps of kWarpRows x kWarpColumns elements on tensor cores. A chunk's rows are [kRows, kDepth] in shared memory, its columns
// [kDepth, kColumns], or [kColumns, kDepth] where kAlongDepth. row_place and column_place say where their elements are.
template <class Kind, int kRows_, int kColumns_, int kWarpRows, int kWarpColumns, bool kAlongDepth_ = false, int kStages_ = 3>
struct MmaCore : SynchronousCore {
  using Element = typename Kind::Element;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_;
  static constexpr bool kAlongDepth = kAlongDepth_;
  static constexpr int kWarpsAcross = kColumns / kWarpColumns;
  static constexpr int kThreads = kRows / kWarpRows * kWarpsAcross * kWarp;
  static constexpr int kDepth = 64 / sizeof(Element);  // elements of a chunk: 64 bytes of a row
  // Shared rows are apart by an odd number of 16 bytes, and for float32 columns by 8 words more than a multiple of 32: no two
  // lanes of a load meet in a bank.
  static constexpr int kRowStride = kDepth + 16 / sizeof(Element);
  static constexpr int kColumnStride = kAlongDepth ? kRowStride : kColumns + 8;
  static constexpr int kRowElements = kRows * kRowStride;  // elements of a chunk
  static constexpr int kColumnElements = (kAlongDepth ? kColumns : kDepth) * kColumnStride;
  static_assert(kRows % kWarpRows == 0 && kColumns % kWarpColumns == 0 && kWarpRows % 16 == 0 && kWarpColumns % 16 == 0);
  static_assert(kColumns % (sizeof(Element) == 4 ? 32 : 16) == 0 && kDepth % Kind::kDepth == 0);

  static ASPEN_DEVICE int row_place(int row, int k) { return row * kRowStride + k; }
  static ASPEN_DEVICE int column_place(int line, int at) { return line * kColumnStride + at; }

  struct Held {
    FragmentC c[kWarpRows / 16][kWarpColumns / 8];  // [kWarpRows / 16, kWarpColumns / 8] of [16, 8]
  };
  PerWarp<Held, kThreads / kWarp> held;

  ASPEN_DEVICE void clear(Block<kThreads>& block) {
    block.each_warp([&](int warp) {
      each_fragment(warp, [](int, int, FragmentC& c) { c.each([](int, int, uint32_t& bits) { bits = 0; }); });
    });
  }

  // Adds a chunk's products, whose rows lie kStride elements apart.
  // rows: [kRows, kDepth], columns: [kDepth, kColumns] as column_place has them -> held += rows * columns: [kRows, kColumns].
  template <int kStride = kRowStride>
  ASPEN_DEVICE void multiply(Block<kThreads>& block, const Element* rows, const Element* columns) {
    block.each_warp([&](int warp) {
      const int first_row = warp / kWarpsAcross * kWarpRows, first_column = warp % kWarpsAcross * kWarpColumns;
      ASPEN_UNROLL for (int k = 0; k < kDepth; k += Kind::kDepth) {
        FragmentB b[kWarpColumns / 8];  // [kWarpColumns / 8] of [Kind::kDepth, 8]
        ASPEN_UNROLL for (int j = 0; j < kWarpColumns / 8; ++j) load_b(b[j], columns, k, first_column + 8 * j);
        ASPEN_UNROLL for (int i = 0; i < kWarpRows / 16; ++i) {
          FragmentA a;  // [16, Kind::kDepth]
          // Squares: the upper 8 rows, the lower, and both again half of the depth later.
          load_squares<false>(a, [&](int line) {
            const int row = first_row + 16 * i + line % 16;
            return rows + row * kStride + k + line / 16 * (Kind::kDepth / 2);
          });
          if constexpr (sizeof(Element) == 4) {
            a.each([](int, int, uint32_t& bits) { bits = rounded_to_tf32(bits); });
          }
          ASPEN_UNROLL for (int j = 0; j < kWarpColumns / 8; ++j) multiply_add<Kind>(held[warp].c[i][j], a, b[j]);
        }
      }
    });
  }

  // Calls visit(row, column, value) for each element, every lane for its own; what visit makes of the value is kept.
  template <class Visit>
  ASPEN_DEVICE void each(Block<kThreads>& block, const Visit& visit) {
    block.each_warp([&](int warp) {
      const int first_row = warp / kWarpsAcross * kWarpRows, first_column = warp % kWarpsAcross * kWarpColumns;
      each_fragment(warp, [&](int i, int j, FragmentC& c) {
        c.each([&](int lane, int r, uint32_t& bits) {
          float value = as_float(bits);
          visit(first_row + 16 * i + lane / 4 + 8 * (r / 2), first_column + 8 * j + lane % 4 * 2 + r % 2, value);
          bits = as_bits(value);
        });
      });
    });
  }

  // columns: a chunk's -> b: its [Kind::kDepth, 8] from (k, column) on.
  static ASPEN_DEVICE void load_b(FragmentB& b, const Element* columns, int k, int column) {
    if constexpr (sizeof(Element) == 4) {
      b.each([&](int lane, int i, uint32_t& bits) {
        const int own_k = k + lane % 4 + 4 * i, own_column = column + lane / 4;
        bits = as_bits(kAlongDepth ? columns[own_column * kColumnStride + own_k] : columns[own_k * kColumnStride + own_column]);
        if constexpr (!kIsSame<Kind, RoundedTf32>) bits = rounded_to_tf32(bits);
      });
    } else if constexpr (kAlongDepth) {
      load_squares<false>(
          b, [&](int line) { return columns + (column + line % 8) * kColumnStride + k + line / 8 * (Kind::kDepth / 2); });
    } else {
      load_squares<true>(b, [&](int line) { return columns + (k + line) * kColumnStride + column; });
    }
  }

 private:
  template <class Visit>
  ASPEN_DEVICE void each_fragment(int warp, const Visit& visit) {
    ASPEN_UNROLL for (int i = 0; i < kWarpRows / 16; ++i) {
      ASPEN_UNROLL for (int j = 0; j < kWarpColumns / 8; ++j) visit(i, j, held[warp].c[i][j]);
    }
  }
};

// Threads of 8 x 4 elements, every product in float32. A chunk's rows and columns are shaped as those of MmaCore.
template <int kRows_, int kColumns_, bool kAlongDepth_ = false, int kStages_ = 3>
struct FmaCore : SynchronousCore {
  using Element = float;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_;
  static constexpr bool kAlongDepth = kAlongDepth_;
  static constexpr int kHigh = 8, kWide = 4;
  static constexpr int kAcross = kColumns / kWide;
  static constexpr int kThreads = kRows / kHigh * kAcross;
  static constexpr int kDepth = 16;
  static constexpr int kRowStride = kDepth + 4;
  static constexpr int kColumnStride = kAlongDepth ? kRowStride : kColumns + 8;
  static constexpr int kRowElements = kRows * kRowStride;
  static constexpr int kColumnElements = (kAlongDepth ? kColumns : kDepth) * kColumnStride;
  // Columns of a thread are neighbours, or as far apart as spares lanes from meeting in a bank.
  static constexpr int kNextColumn = kAlongDepth ? kAcross : 1;

  static ASPEN_DEVICE int row_place(int row, int k) { return row * kRowStride + k; }
  static ASPEN_DEVICE int column_place(int line, int at) { return line * kColumnStride + at; }
  static ASPEN_DEVICE int first_column(int thread) { return thread % kAcross * (kAlongDepth ? 1 : kWide); }

  struct Held {
    float sums[kHigh][kWide];  // (i, j): row thread / kAcross * kHigh + i, column first_column(thread) + j * kNextColumn
  };
  PerThread<Held, kThreads> held;

  ASPEN_DEVICE void clear(Block<kThreads>& block) {
    block.each_thread([&](int thread) { held[thread] = {}; });
  }

  template <int kStride = kRowStride>
  ASPEN_DEVICE void multiply(Block<kThreads>& block, const float* rows, const float* columns) {
    block.each_thread([&](int thread) {
      const float* const a = rows + thread / kAcross * kHigh * kStride;
      const int column = first_column(thread);
      ASPEN_UNROLL for (int k = 0; k < kDepth; ++k) {
        ASPEN_UNROLL for (int i = 0; i < kHigh; ++i) {
          ASPEN_UNROLL for (int j = 0; j < kWide; ++j) held[thread].sums[i][j] +=
              a[i * kStride + k] *
              (kAlongDepth ? columns[(column + j * kNextColumn) * kColumnStride + k] : columns[k * kColumnStride + column + j]);
        }
      }
    });
  }

  template <class Visit>
  ASPEN_DEVICE void each(Block<kThreads>& block, const Visit& visit) {
    block.each_thread([&](int thread) {
      ASPEN_UNROLL for (int i = 0; i < kHigh; ++i) {
        ASPEN_UNROLL for (int j = 0; j < kWide; ++j) {
          visit(thread / kAcross * kHigh + i, first_column(thread) + j * kNextColumn, held[thread].sums[i][j]);
        }
      }
    });
  }
};

// Says whether warpgroups can multiply such operands: a chunk is no deeper than the product, and operands are read in whole units
// of the swizzle (fewer, larger copies a thread; 2 bytes at a time the lines that a thread remembers would not stay in
// registers). Columns of float32 lie along the depth and are rounded.
template <class Kind, int kVector, int kDepth, bool kAlongDepth>
inline constexpr bool kForWarpgroups = kVector * sizeof(typename Kind::Element) == 16 && kDepth >= Swizzle::kLineOf<Kind> &&
                                       (sizeof(typename Kind::Element) == 2 || (kIsSame<Kind, RoundedTf32> && kAlongDepth));

// Blocks of 64 x 64, 64 x 128 or 128 x 128: by warpgroups where the device has their instructions and the operands suit them.
template <class Kind, int kRows, int kColumns, int kVector, int kDepth, bool kAlongDepth>
using BlockCore = typename Either<kHasWarpgroups && kForWarpgroups<Kind, kVector, kDepth, kAlongDepth>,
                                  WgmmaCore<Kind, kRows, kColumns, kAlongDepth>,
                                  MmaCore<Kind, kRows, kColumns, kRows / 2, kColumns * 32 / kRows, kAlongDepth>>::Type;

// Adjacent sums, as lanes.
struct Sums {
  const float* of;
  ASPEN_DEVICE uint32_t lane(int i) const { return as_bits(of[i]); }
};

// Ends `count` adjacent sums, the first of which is element `at` of the output. Those before the box were computed only because
// columns are read in whole vectors. Op is what is generated (elements.h): its `run` takes kRun sums at once.
template <class Op, int kColumnAxis, int kRun>
ASPEN_DEVICE void finish_sums(const typename Op::Addresses& buffers, [[maybe_unused]] const int32_t* box, int* at,
                              const float* sums, [[maybe_unused]] int count) {
  if constexpr (kColumnAxis < 0) {
    Op::finish(buffers, at, as_bits(sums[0]));
  } else {
    if constexpr (kRun > 1) {
      if (count == kRun && at[kColumnAxis] % kRun == 0 && at[kColumnAxis] >= box[kColumnAxis]) {
        Op::run(buffers, at, Sums{sums});
        return;
      }
    }
    for (int i = 0; i < count; ++i, ++at[kColumnAxis]) {
      if (at[kColumnAxis] >= box[kColumnAxis]) Op::finish(buffers, at, as_bits(sums[i]));
    }
  }
}

// Elements from a line of sums to the next, so many that those of a vector are aligned.
template <class Core>
inline constexpr int kSumStride = Core::kColumns + 8;

template <class Core, int kStages>
struct ProductMemory {
  struct Stage {
    alignas(Core::kAlignment) typename Core::Element rows[Core::kRowElements];        // [kRows, kDepth] as row_place says
    alignas(Core::kAlignment) typename Core::Element columns[Core::kColumnElements];  // [kDepth, kColumns] as column_place says
  };
  union {
    Stage stages[kStages];
    alignas(32) float sums[Core::kRows * kSumStride<Core>];  // [kRows, kColumns] of the whole depth (store_sums)
  };
};

// Calls store(row, column, sums, count) for runs of kRun columns, of which the first `count` belong to the tile. All threads have
// seen that nobody reads the stages any more.
//
// core: [kRows, kColumns] -> passing: [kRows, kColumns], rows kStride apart -> sums: [kRun], the first of them at (row, column).
//
// Sums pass through shared memory, because what a core leaves a thread lies scattered over rows: with a program for each element,
// spelt out as often as a thread has elements, convolutional networks of batch 1 took 1.2 to 1.4 times as long
// (docs/results/h100.md).
//
// A kRun of 0 says that in the output rows are adjacent, not columns. Then `count` is 1, and neighbouring threads have
// neighbouring rows. An odd stride leaves them no bank in common.
//
// Each of kSlices blocks of a cluster has the sums of a slice, [kRows, kColumns]. It adds up a share of the sums, slice by slice,
// and stores that.
template <int kRunOrNone, int kSlices = 1, class Core, class Store>
ASPEN_DEVICE void store_sums(Block<Core::kThreads>& block, Core& core, float* passing, int num_rows, int num_columns,
                             const Store& store) {
  constexpr bool kDown = kRunOrNone == 0;
  constexpr int kRun = kDown ? 1 : kRunOrNone, kStride = kDown ? Core::kColumns + 1 : kSumStride<Core>;
  constexpr int kAcross = Core::kColumns / kRun;
  static_assert(kRun <= 8 && Core::kColumns % kRun == 0);
  core.each(block, [&](int row, int column, float sum) { passing[row * kStride + column] = sum; });
  Cluster<kSlices>::sync(block);  // all have their sums
  block.each_thread([&](int thread) {
    for (int run = thread + Cluster<kSlices>::rank() * Core::kThreads; run < num_rows * (kDown ? num_columns : kAcross);
         run += kSlices * Core::kThreads) {
      const int row = kDown ? run % num_rows : run / kAcross, column = kDown ? run / num_rows : run % kAcross * kRun;
      if (column >= num_columns) continue;
      if constexpr (kSlices == 1) {
        const auto sums = load_vector<kRun>(static_cast<const float*>(passing) + row * kStride + column);
        store(row, column, sums.elements, min_of(kRun, num_columns - column));
      } else {
        const float* const own = passing + row * kStride + column;
        auto sums = load_vector<kRun>(Cluster<kSlices>::of(own, 0));
        for (int slice = 1; slice < kSlices; ++slice) {
          const auto more = load_vector<kRun>(Cluster<kSlices>::of(own, slice));
          ASPEN_UNROLL for (int i = 0; i < kRun; ++i) sums.elements[i] += more.elements[i];
        }
        store(row, column, sums.elements, min_of(kRun, num_columns - column));
      }
    }
  });
  Cluster<kSlices>::sync(block);  // before the stages are filled again, or the block ends
}

// Counts the elements of an operand's vector at k that are read.
template <class Operand>
ASPEN_DEVICE int read_at(const Operand& operand, [[maybe_unused]] int k) {
  if constexpr (requires { operand.read_at(k); }) {
    return operand.read_at(k);
  } else {
    return Operand::kVector;
  }
}

// Begins copies of a chunk of `kLines` lines along the depth, from k on; lines from num_lines on are zeros. Elements (line, k)
// of the chunk go to to[place(line, k)], vectors of them in one piece. operand: [lines, depth] -> to: [kLines, kDepth].
template <int kLines, int kDepth, int kThreads, class Operand, class Line, class Place>
ASPEN_DEVICE void load_lines(Block<kThreads>& block, int thread, typename Operand::Element* to, const Operand& operand, int k,
                             int num_lines, const Line& line_of, const Place& place) {
  constexpr int kVector = Operand::kVector, kAlong = kDepth / kVector, kVectors = kLines * kAlong;
  ASPEN_UNROLL for (int i = 0; i < (kVectors + kThreads - 1) / kThreads; ++i) {
    const int vector = thread + i * kThreads, line = vector / kAlong, at = vector % kAlong * kVector;
    if (kVectors % kThreads != 0 && vector >= kVectors) continue;
    const typename Operand::Element* const from = line < num_lines ? operand.at(line_of(i, line), k + at) : nullptr;
    constexpr int kSize = sizeof(typename Operand::Element);
    block.template copy_part_async<kVector * kSize>(to + place(line, at), from == nullptr ? operand.any() : from,
                                                    from == nullptr ? 0 : kSize * read_at(operand, k + at));
  }
}
// rows: [num_rows, depth] -> to: [Core::kRows, Core::kDepth], from k on.
template <class Core, int kThreads, class Rows, class Line>
ASPEN_DEVICE void load_rows(Block<kThreads>& block, int thread, typename Core::Element* to, const Rows& rows, int k, int num_rows,
                            const Line& line_of) {
  load_lines<Core::kRows, Core::kDepth>(block, thread, to, rows, k, num_rows, line_of, Core::row_place);
}

// Begins copies of a chunk of columns as the Core has them, from column `first` on; those from num_columns on are zeros.
// columns: [depth, first + num_columns] -> to: [kDepth, kColumns], or [kColumns, kDepth] where kAlongDepth.
template <class Core, int kThreads, class Columns>
ASPEN_DEVICE void load_columns(Block<kThreads>& block, int thread, typename Core::Element* to, const Columns& columns, int k,
                               int first, int num_columns) {
  if constexpr (Core::kAlongDepth) {
    load_lines<Core::kColumns, Core::kDepth>(
        block, thread, to, columns, k, num_columns, [&](int, int column) { return columns.line(first + column); },
        Core::column_place);
  } else {
    using Element = typename Core::Element;
    constexpr int kVector = Columns::kVector, kAcross = Core::kColumns / kVector, kVectors = Core::kDepth * kAcross;
    ASPEN_UNROLL for (int i = 0; i < (kVectors + kThreads - 1) / kThreads; ++i) {
      const int vector = thread + i * kThreads, row = vector / kAcross, column = vector % kAcross * kVector;
      if (kVectors % kThreads != 0 && vector >= kVectors) continue;
      const Element* const from = column < num_columns ? columns.at(k + row, first + column) : nullptr;
      block.template copy_async<kVector * sizeof(Element)>(to + Core::column_place(row, column),
                                                           from == nullptr ? columns.any() : from, from != nullptr);
    }
  }
}

// Multiplies chunk after chunk: while one is multiplied, the next ones are being copied. `load(chunk)` begins copies, and
// `multiply(chunk, stage)` adds to the core's sums what has come to lie in that stage. Of kUnroll chunks the code is spelt out.
template <int kStages, int kUnroll = 1, class Core, class Load, class Multiply>
ASPEN_DEVICE void each_chunk(Block<Core::kThreads>& block, Core& core, int num_chunks, const Load& load,
                             const Multiply& multiply) {
  constexpr int kAhead = kStages - 1 - Core::kInFlight;  // chunks that are being copied while one is multiplied
  static_assert(kAhead >= 1);
  const auto begin = [&](int chunk) {
    if (chunk < num_chunks) load(chunk, chunk % kStages);
    // Empty at the end, so that `wait` always counts alike.
    block.commit();
  };
  for (int chunk = 0; chunk < kAhead; ++chunk) begin(chunk);
  ASPEN_UNROLL_BY(kUnroll)
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    block.template wait<kAhead - 1>();
    if constexpr (Core::kReadsByProxy) block.publish();
    core.template wait<Core::kInFlight>(block);
    // All see the chunk, and nobody reads any more the buffer that is filled next.
    block.sync();
    begin(chunk + kAhead);
    multiply(chunk, chunk % kStages);
  }
  block.template wait<0>();
  core.template wait<0>(block);
  block.sync();
}

// Sums up num_rows x num_columns elements, no more than the Core has, over a depth.
//
// Rows say where row r begins (`line(r)`), and where its elements from k on are (`at(line, k)`): kVector adjacent ones, k a
// multiple of kVector, or nullptr for zeros. Columns do the same where the Core has them along the depth; else they say where
// elements (k, c ...) are: `at(k, c)`, likewise. Both have `any()`, an address in global memory that is aligned to their vectors.
//
// rows: [num_rows, depth], columns: [depth, num_columns] -> core: [kRows, kColumns], of which num_rows x num_columns count.
template <class Core, int kStages, class Rows, class Columns>
ASPEN_DEVICE void sum_up(Block<Core::kThreads>& block, Core& core, ProductMemory<Core, kStages>& memory, const Rows& rows,
                         const Columns& columns, int num_rows, int num_columns, int depth) {
  constexpr int kThreads = Core::kThreads;
  constexpr int kRowVectors = (Core::kRows * Core::kDepth / Rows::kVector + kThreads - 1) / kThreads;
  constexpr int kAlongRow = Core::kDepth / Rows::kVector;

  core.clear(block);
  struct Lines {
    typename Rows::Line lines[kRowVectors];
  };
  PerThread<Lines, kThreads> lines;
  block.each_thread([&](int thread) {
    ASPEN_UNROLL for (int i = 0; i < kRowVectors; ++i) lines[thread].lines[i] = rows.line((thread + i * kThreads) / kAlongRow);
  });

  const auto load = [&](int chunk, int stage) {
    auto& to = memory.stages[stage];
    block.each_thread([&](int thread) {
      load_rows<Core>(block, thread, to.rows, rows, chunk * Core::kDepth, num_rows,
                      [&](int i, int) { return lines[thread].lines[i]; });
      load_columns<Core>(block, thread, to.columns, columns, chunk * Core::kDepth, 0, num_columns);
    });
  };
  each_chunk<kStages>(block, core, (depth + Core::kDepth - 1) / Core::kDepth, load,
                      [&](int, int stage) { core.multiply(block, memory.stages[stage].rows, memory.stages[stage].columns); });
}

// Sums up likewise, and gives the sums to `store` (store_sums): [num_rows, num_columns].
template <int kRun, int kSlices = 1, class Core, int kStages, class Rows, class Columns, class Store>
ASPEN_DEVICE void multiply_tile(ProductMemory<Core, kStages>& memory, const Rows& rows, const Columns& columns, int num_rows,
                                int num_columns, int depth, const Store& store) {
  Block<Core::kThreads> block;
  Core core;
  sum_up(block, core, memory, rows, columns, num_rows, num_columns, depth);
  store_sums<kRun, kSlices>(block, core, memory.sums, num_rows, num_columns, store);
}

}  // namespace aspen::cuda
