// Products one behind the other as one launch (Bolt, section 3.1.1): each reads the one before as its rows, and has a matrix of
// weights of its own. The first may be any convolution, whose rows are pixels; the others then are convolutions by single pixels.
//
// A block owns some rows, and of every product but the last all columns (threadblock residence). So what is between never leaves
// the block: it stays in registers (held_rows.h), or in shared memory, where warps share its columns. Weights pass through shared
// memory in chunks, once for each block; they come from the L2 cache.
//
// A product's element-wise program is generated code, `Op::part`.
//
// rows: [kRows, depth of the first], weights: [depth, columns] of each -> between: [kRows, columns], which is the next product's
// [kRows, depth] -> output: [kRows, columns of the last].
#pragma once

#include "conv_tile.h"
#include "held_rows.h"
#include "matrices.h"
#include "stack.h"

namespace aspen::cuda {

struct ChainShape {
  bool in_registers;  // whether what is between stays there
  int width;          // elements of the widest row between, in whole columns of cores
  int run;            // adjacent elements of the output that are stored at once
};

// The coordinates of a row of a box, by its number: all but the column. box: [2, kRank] -> at[0 ... kRank - 2].
template <int kRank>
ASPEN_DEVICE constexpr Axes row_axes() {
  Axes axes{kRank - 1, {}};
  for (int i = 0; i < kRank - 1; ++i) axes.of[i] = i;
  return axes;
}
template <int kRank>
ASPEN_DEVICE void row_at(const int32_t* box, int number, int* at) {
  decode<kRank, row_axes<kRank>()>(box, number, at);
}

// A product of a chain: [rows, depth] by [depth, columns].
struct ChainLink {
  int depth, columns;
  MatrixShape weights;
};

// The rows of the first product: those of a matrix, or pixels of a convolution.
template <class Element, MatrixShape kMatrix>
struct MatrixSource {
  template <int kRank, class Addresses>
  static ASPEN_DEVICE auto rows(const Addresses& buffers, const int32_t* box, int first, int depth) {
    const auto* const data = static_cast<const Element*>(buffers.inputs[kMatrix.input]);
    const auto place = [box, first](int row) {
      int at[kRank];
      row_at<kRank>(box, first + row, at);
      at[kRank - 1] = 0;
      return place_of<kMatrix.strides>(at);
    };
    return placed_rows<Element, kMatrix.vector>(data, place, kMatrix.step, depth);
  }
};
template <class Element, ConvTileShape kConvolution>
struct PixelSource {
  template <int kRank, class Addresses>
  static ASPEN_DEVICE auto rows(const Addresses& buffers, const int32_t* box, int first, int) {
    return pixels_at<Element, kConvolution, kRank>(buffers, box, 0, first);
  }
};

template <class Stored_, class Core_, ChainLink kLink_>
struct Link {
  using Stored = Stored_;
  using Core = Core_;
  using Element = typename Core::Element;
  static constexpr ChainLink kLink = kLink_;
};

// What a product's weights, and later in their place its sums, take of shared memory where its rows are in the block already.
template <class Core>
union ColumnsMemory {
  alignas(16) typename Core::Element columns[Core::kStages][Core::kColumnElements];  // [kStages] of [kDepth, kColumns]
  alignas(32) float sums[Core::kRows * kSumStride<Core>];                            // [kRows, kColumns]
};

// One place for all products, which take it in turn.
template <class Own, class... Others>
union InTurn {
  Own own;
  InTurn<Others...> others;
};
template <class Own>
union InTurn<Own> {
  Own own;
};
template <int kNumber, class Memory>
ASPEN_DEVICE auto& turn(Memory& memory) {
  if constexpr (kNumber == 0) {
    return memory.own;
  } else {
    return turn<kNumber - 1>(memory.others);
  }
}

// The last product as an op of its own: what is stored is what its program makes of a sum.
template <class Op, int kLast>
struct LastPart : Op {
  template <class Own>
  struct Made {
    const typename Op::Addresses& buffers;
    const int* first;
    const Own& own;
    ASPEN_DEVICE uint32_t lane(int i) const {
      int at[Op::kRank];
      ASPEN_UNROLL for (int d = 0; d < Op::kRank; ++d) at[d] = first[d];
      at[Op::kRank - 1] += i;
      return Op::part(buffers, at, PartNumber<kLast>(), own.lane(i));
    }
  };
  static ASPEN_DEVICE void finish(const typename Op::Addresses& buffers, const int* at, uint32_t own) {
    Op::finish(buffers, at, Op::part(buffers, at, PartNumber<kLast>(), own));
  }
  template <class Own>
  static ASPEN_DEVICE void run(const typename Op::Addresses& buffers, const int* at, const Own& own) {
    Op::run(buffers, at, Made<Own>{buffers, at, own});
  }
};

template <class Op, class Source, ChainShape kShape, class First, class... Others>
struct Chain : Op {
  using Addresses = typename Op::Addresses;
  using Element = typename First::Element;
  using FirstCore = typename First::Core;
  static constexpr int kThreads = FirstCore::kThreads, kRows = FirstCore::kRows, kRank = Op::kRank, kLast = sizeof...(Others);
  static constexpr bool kHeld = kShape.in_registers;
  // Rows of what is between are apart by an odd number of 16 bytes: no two rows of a square that is loaded meet in a bank.
  static constexpr int kVector = 16 / sizeof(Element), kStride = kShape.width + kVector;
  static_assert(kShape.width * sizeof(Element) % 32 == 0);

  struct Memory {
    InTurn<ProductMemory<FirstCore, FirstCore::kStages>, ColumnsMemory<typename Others::Core>...> turns;
    alignas(16) Element between[kHeld ? 1 : kRows * kStride];  // [kRows, kShape.width], rows kStride apart
  };

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    int rows = 1;
    ASPEN_UNROLL for (int d = 0; d < kRank - 1; ++d) rows *= box[kRank + d] - box[d];
    for (int first = 0; first < rows; first += kRows) {
      Work work{buffers, box, memory, {}, first, min_of(rows - first, kRows)};
      FirstCore core;
      sum_up(work.block, core, turn<0>(memory.turns), Source::template rows<kRank>(buffers, box, first, First::kLink.depth),
             columns_at<0>(buffers, 0), work.num_rows, First::kLink.columns, First::kLink.depth);
      pass_on<0>(work, core);
    }
  }

 private:
  template <int kNumber>
  using Part = typename PartOf<kNumber, First, Others...>::Type;

  // A block's rows: num_rows of those of the box, from number `first` on.
  struct Work {
    const Addresses& buffers;
    const int32_t* box;
    Memory& memory;
    Block<kThreads> block;
    int first, num_rows;
  };

  // Gives a product's columns from `first` on: [depth, columns - first].
  template <int kNumber>
  static ASPEN_DEVICE auto columns_at(const Addresses& buffers, int first) {
    int at[kRank] = {};
    at[kRank - 1] = first;
    return matrix_at<Part<kNumber>::kLink.weights, Element>(buffers, at, 0, Part<kNumber>::kLink.depth);
  }

  // Makes what the next product reads of an element: nothing where there is none, for its weights are zeros there, and zero times
  // what is not finite is not zero.
  template <int kNumber>
  static ASPEN_DEVICE typename Part<kNumber>::Stored::Word made(const Work& work, const int* at, bool exists, float sum) {
    typename Part<kNumber>::Stored::Word word = 0;
    if (exists) Part<kNumber>::Stored::store(&word, 0, Op::part(work.buffers, at, PartNumber<kNumber>(), as_bits(sum)));
    return word;
  }

  // Keeps the sums of a product for the next one, and goes on with that.
  // core: [num_rows, Core::kColumns] -> rows or memory.between, of the same shape, with zeros behind the product's last column.
  template <int kNumber, class Core>
  static ASPEN_DEVICE void pass_on(Work& work, Core& core) {
    constexpr int kColumns = Part<kNumber>::kLink.columns;
    if constexpr (kHeld) {
      PerWarp<typename Core::Rows, kThreads / kWarp> rows;
      core.hold(work.block, rows, [&](int row, int column, float sum) {
        int at[kRank];
        row_at<kRank>(work.box, work.first + row, at);
        at[kRank - 1] = column;
        return made<kNumber>(work, at, row < work.num_rows && column < kColumns, sum);
      });
      go_on<kNumber + 1>(work, [&](auto& next, int chunk, const Element* columns) {
        next.multiply_held(work.block, rows, chunk * (Core::kDepth / Core::Kind::kDepth), columns);
      });
    } else {
      using Word = typename Part<kNumber>::Stored::Word;
      float* const passing = turn<kNumber>(work.memory.turns).sums;
      store_sums<kVector>(work.block, core, passing, work.num_rows, Core::kColumns,
                          [&](int row, int column, const float* sums, int) {
                            int at[kRank];
                            row_at<kRank>(work.box, work.first + row, at);
                            Vector<Word, kVector> words;
                            ASPEN_UNROLL for (int i = 0; i < kVector; ++i) {
                              at[kRank - 1] = column + i;
                              words.elements[i] = made<kNumber>(work, at, column + i < kColumns, sums[i]);
                            }
                            store_vector<kVector>(reinterpret_cast<Word*>(work.memory.between) + row * kStride + column, words);
                          });
      go_on<kNumber + 1>(work, [&](auto& next, int chunk, const Element* columns) {
        next.template multiply<kStride>(work.block, work.memory.between + chunk * Core::kDepth, columns);
      });
    }
  }

  // Computes the products from number kNumber on. `multiply(core, chunk, columns)` adds to a core's sums a chunk's columns by the
  // rows: [kRows, kDepth] by [kDepth, kColumns].
  template <int kNumber, class Multiply>
  static ASPEN_DEVICE void go_on(Work& work, const Multiply& multiply) {
    using Core = typename Part<kNumber>::Core;
    constexpr ChainLink kLink = Part<kNumber>::kLink;
    // A tile has whole rows (Stack.grain in aspen_jax/ops/stack.py).
    for (int first = 0; first < kLink.columns; first += Core::kColumns) {
      const int num_columns = min_of(kLink.columns - first, Core::kColumns);
      Core core;
      core.clear(work.block);
      sum_columns<kNumber>(work, core, first, num_columns, multiply);
      if constexpr (kNumber < kLast) {
        pass_on<kNumber>(work, core);
      } else {
        store_sums<kShape.run>(work.block, core, turn<kNumber>(work.memory.turns).sums, work.num_rows, num_columns,
                               [&](int row, int column, const float* sums, int count) {
                                 int at[kRank];
                                 row_at<kRank>(work.box, work.first + row, at);
                                 at[kRank - 1] = first + column;
                                 finish_sums<LastPart<Op, kLast>, kRank - 1, kShape.run>(work.buffers, work.box, at, sums, count);
                               });
      }
    }
  }

  // Sums up the columns from `first` on of a product whose rows the block has. core: [kRows, kColumns].
  template <int kNumber, class Core, class Multiply>
  static ASPEN_DEVICE void sum_columns(Work& work, Core& core, int first, int num_columns, const Multiply& multiply) {
    constexpr int kChunks = (Part<kNumber>::kLink.depth + Core::kDepth - 1) / Core::kDepth;
    auto& stages = turn<kNumber>(work.memory.turns).columns;
    const auto columns = columns_at<kNumber>(work.buffers, first);
    each_chunk<Core::kStages, kHeld ? kChunks : 1>(
        work.block, core, kChunks,
        [&](int chunk, int stage) {
          work.block.each_thread([&](int thread) {
            load_columns<Core>(work.block, thread, stages[stage], columns, chunk * Core::kDepth, 0, num_columns);
          });
        },
        [&](int chunk, int stage) { multiply(core, chunk, stages[stage]); });
  }
};

}  // namespace aspen::cuda
