// Attention: a block of queries goes through all keys, kKeys at a time, and keeps of the scores only each row's largest and the
// sum of exponentials so far (online softmax). Both products are those of product.h. What becomes of scores is that of
// attention_weights.h. Where keys are sliced, the two numbers are stored beside the weighted sums, so that another kernel can
// merge the slices.
//
// queries: [num_rows, kDepth], keys: [num_keys, kDepth] -> scores: [num_rows, num_keys] -> weights, of the same shape;
// values: [num_keys, num_columns] -> sums: [num_rows, num_columns]. At a time there are [kRows, kKeys] scores.
//
// A mask may leave no weights but exact zeros from some key on. Those keys are left out where that changes nothing: where no
// score is so large that it would lift what is masked, and no value is infinite or NaN, whose product with zero is NaN.
#pragma once

#include <cstdint>

#include "attention_copies.h"
#include "attention_weights.h"
#include "block.h"
#include "product.h"
#include "teams.h"
#include "tile.h"

namespace aspen::cuda {

// The cores have as many rows and threads. kDepth: the depth of the first product, the queries' width. kMasked: keys may be left
// out. kInBoxes: maps describe keys and values.
template <class Scores, class Values, int kDepth, bool kMasked, bool kInBoxes>
struct Attention {
  using Element = typename Scores::Element;
  using ScoresCore = Scores;
  using ValuesCore = Values;
  static constexpr int kThreads = Scores::kThreads, kRows = Scores::kRows;
  static constexpr int kKeys = Scores::kColumns, kColumns = Values::kColumns;
  static constexpr int kScoreChunks = (kDepth + Scores::kDepth - 1) / Scores::kDepth;
  static constexpr int kValueChunks = kKeys / Values::kDepth;
  static_assert(kThreads == Values::kThreads && kRows == Values::kRows);
  using Weights = WeightsOf<Scores, Values>;
  using All = Team<kThreads, kWarp, kThreads / kWarp>;

  struct TwoBarriers {
    Barrier arrived[2];
  };
  struct NoBarriers {};
  struct Memory {
    // [kScoreChunks] of [kRows, Scores::kDepth], as Scores has its rows.
    alignas(Scores::kAlignment) Element queries[kScoreChunks][Scores::kRowElements];
    union {
      struct {
        // [kScoreChunks] of [Scores::kDepth, kKeys], and [kValueChunks] of [Values::kDepth, kColumns], as the cores have columns.
        alignas(Scores::kAlignment) Element keys[kScoreChunks][Scores::kColumnElements];
        alignas(Values::kAlignment) Element values[kValueChunks][Values::kColumnElements];
      };
      alignas(32) float passing[kRows * kSumStride<Values>];  // [kRows, kColumns]: sums on their way out
    };
    typename Weights::Memory weights;
    typename Either<kInBoxes, TwoBarriers, NoBarriers>::Type barriers;
    float totals[kRows];  // each row's sum of weights, in the end
    typename All::template Memory<float> all;
    int is_large;  // whether a score so far is larger than may be
  };

  // Keys from `end` on have weights of exactly zero, if no score is larger than `most` (kMasked).
  struct Mask {
    int end;
    float most;
  };

  // Calls totals(row, most, total) for num_rows rows, their largest score and the sum of weights e^(score - most), and store(row,
  // column, sums, count, total) for runs of kRun weighted sums of num_rows x num_columns (store_sums in product.h). `score(row,
  // key, sum)` is what the softmax takes, of the sum of products; `narrow` makes an element of a weight, `widen` a float of an
  // element. `boxes`: of keys and values (attention_copies.h).
  template <int kRun, class Queries, class Keys, class Columns, class Boxes, class Score, class Narrow, class Widen, class Totals,
            class Store>
  static ASPEN_DEVICE void attend(Memory& memory, const Queries& queries, const Keys& keys, const Columns& values,
                                  const Boxes& boxes, int num_rows, int num_keys, int num_columns, [[maybe_unused]] Mask mask,
                                  const Score& score, const Narrow& narrow, [[maybe_unused]] const Widen& widen,
                                  const Totals& totals, const Store& store) {
    Block<kThreads> block;
    static_assert(Boxes::kAny == kInBoxes);
    using Copies = typename Either<kInBoxes, CopiesInBoxes<Attention, Keys, Columns, Boxes>,
                                   CopiesByThreads<Attention, Keys, Columns>>::Type;
    Copies copies(block, memory, keys, values, boxes, num_keys, num_columns);
    Weights weights;
    Scores scores;  // [kRows, kKeys]
    Values sums;    // [kRows, kColumns]
    sums.clear(block);
    block.each_thread([&](int thread) {
      if (thread == 0) memory.is_large = 0;
      ASPEN_UNROLL for (int chunk = 0; chunk < kScoreChunks; ++chunk) {
        load_rows<Scores>(block, thread, memory.queries[chunk], queries, chunk * Scores::kDepth, num_rows,
                          [&](int, int row) { return queries.line(row); });
      }
    });
    weights.begin(block);
    copies.begin();
    for (int first = 0; first < num_keys; first += kKeys) {
      if constexpr (kMasked) {
        if (first >= mask.end && first < mask.end + kKeys &&
            may_end(block, memory, keys, values, first, num_keys, num_columns, mask.most, widen)) {
          break;
        }
      }
      copies.wait_for_keys();
      scores.clear(block);
      ASPEN_UNROLL for (int chunk = 0; chunk < kScoreChunks; ++chunk) {
        scores.multiply(block, memory.queries[chunk], memory.keys[chunk]);
      }
      scores.template wait<0>(block);
      weights.score(block, memory.weights, scores, [&](int row, int key, float sum) {
        const bool counts = row < num_rows && first + key < num_keys;
        if (kMasked && counts && !(magnitude(sum) <= mask.most)) memory.is_large = 1;
        return counts ? as_float(score(row, first + key, as_bits(sum))) : nothing();
      });
      block.sync();
      copies.load_keys(first + kKeys);
      weights.weigh(block, memory.weights, scores, narrow);

      copies.wait_for_values();
      weights.scale(block, memory.weights, sums);
      ASPEN_UNROLL for (int chunk = 0; chunk < kValueChunks; ++chunk) {
        weights.multiply(block, memory.weights, sums, chunk, memory.values[chunk]);
      }
      sums.template wait<0>(block);
      block.sync();
      copies.load_values(first + kKeys);
    }
    copies.end();
    weights.each_row(block, [&](int row, float most, float total) {
      memory.totals[row] = total;
      if (row < num_rows) totals(row, most, total);
    });
    block.sync();
    store_sums<kRun>(block, sums, memory.passing, num_rows, num_columns, [&](int row, int column, const float* own, int count) {
      store(row, column, own, count, memory.totals[row]);
    });
  }

 private:
  // Says whether keys from `first` on may be left out. What every thread gets is the same.
  template <class Keys, class Columns, class Widen>
  static ASPEN_DEVICE bool may_end(Block<kThreads>& block, Memory& memory, const Keys& keys, const Columns& values, int first,
                                   int num_keys, int num_columns, float most, const Widen& widen) {
    PerThread<float, kThreads> query, key, value;
    block.each_thread([&](int thread) {
      float found = 0;
      for (int chunk = 0; chunk < kScoreChunks; ++chunk) {
        for (int i = thread; i < kRows * Scores::kDepth; i += kThreads) {
          const auto element = memory.queries[chunk][Scores::row_place(i / Scores::kDepth, i % Scores::kDepth)];
          found = larger_of(found, magnitude(widen(element)));
        }
      }
      query[thread] = found;
      key[thread] = largest<Scores>(thread, keys, first, num_keys, 0, kDepth, widen);
      value[thread] = largest<Values>(thread, values, 0, num_columns, first, num_keys, widen);
    });
    All::reduce(block, memory.all, query, larger_of);
    All::reduce(block, memory.all, key, larger_of);
    All::reduce(block, memory.all, value, larger_of);
    PerThread<int, kThreads> may;
    block.each_thread([&](int thread) {
      may[thread] = memory.is_large == 0 && kDepth * query[thread] * key[thread] <= most && value[thread] < -nothing();
    });
    return may[0] != 0;
  }

  // Finds a thread's share of the largest magnitude in columns [first, last) of a Core, elements [begin, end) of the depth.
  // columns: [end - begin, last - first] -> one number of each thread.
  template <class Core, class Columns, class Widen>
  static ASPEN_DEVICE float largest(int thread, const Columns& columns, int first, int last, int begin, int end,
                                    const Widen& widen) {
    constexpr int kVector = Columns::kVector;
    const int depth = end - begin, count = last - first;
    const int across = ((Core::kAlongDepth ? depth : count) + kVector - 1) / kVector;
    float found = 0;
    for (int i = thread; i < across * (Core::kAlongDepth ? count : depth); i += kThreads) {
      const Element* from;
      if constexpr (Core::kAlongDepth) {
        from = columns.at(columns.line(first + i / across), begin + i % across * kVector);
      } else {
        from = columns.at(begin + i / across, first + i % across * kVector);
      }
      if (from == nullptr) continue;
      const auto vector = load_vector<kVector>(from);
      ASPEN_UNROLL for (int j = 0; j < kVector; ++j) found = larger_of(found, magnitude(widen(vector.elements[j])));
    }
    return found;
  }

  static ASPEN_DEVICE float magnitude(float value) { return as_float(as_bits(value) & 0x7fffffff); }
};

}  // namespace aspen::cuda
