// Attention: a block of queries goes through all keys, kKeys at a time, and keeps of the scores only each row's largest and the
// sum of exponentials so far (online softmax). Both products are those of product.h.
#pragma once

#include <cstdint>

#include "block.h"
#include "product.h"
#include "scalar.h"
#include "teams.h"

namespace aspen::cuda {

// The cores have as many rows and threads. kDepth: of the first product, the queries' width.
template <class Scores, class Values, int kDepth>
struct Attention {
  using Element = typename Scores::Element;
  static constexpr int kThreads = Scores::kThreads, kRows = Scores::kRows;
  static constexpr int kKeys = Scores::kColumns, kColumns = Values::kColumns;
  static constexpr int kScoreChunks = (kDepth + Scores::kDepth - 1) / Scores::kDepth;
  static constexpr int kValueChunks = kKeys / Values::kDepth;
  static_assert(kThreads == Values::kThreads && kRows == Values::kRows && kThreads % kRows == 0);
  using Rows = Team<kThreads, kThreads / kRows, 1>;

  struct Memory {
    alignas(16) Element queries[kScoreChunks][kRows * Scores::kRowStride];
    alignas(16) Element keys[kScoreChunks][Scores::kColumnElements];
    alignas(16) Element values[kValueChunks][Values::kColumnElements];
    alignas(16) Element weights[kValueChunks][kRows * Values::kRowStride];
    float scores[kRows][kKeys + 2];  // two lanes a row read them without meeting in a bank
    float scales[kRows];             // what the sums so far are multiplied with; in the end the sums of weights
    typename Rows::template Memory<float> team;
  };

  // Calls store(row, column, value) for num_rows x num_columns elements. `score(row, key, sum)` is what the softmax takes, of the
  // sum of products; `narrow` stores a weight as an element.
  template <class Queries, class Keys, class Columns, class Score, class Narrow, class Store>
  static ASPEN_DEVICE void attend(Memory& memory, const Queries& queries, const Keys& keys, const Columns& values, int num_rows,
                                  int num_keys, int num_columns, const Score& score, const Narrow& narrow, const Store& store) {
    Block<kThreads> block;
    const auto load_keys = [&](int first) {
      block.each_thread([&](int thread) {
        ASPEN_UNROLL for (int chunk = 0; chunk < kScoreChunks; ++chunk) {
          load_columns<Scores>(block, thread, memory.keys[chunk], keys, chunk * Scores::kDepth, first, num_keys - first);
        }
      });
    };
    const auto load_values = [&](int first) {
      block.each_thread([&](int thread) {
        ASPEN_UNROLL for (int chunk = 0; chunk < kValueChunks; ++chunk) {
          load_columns<Values>(block, thread, memory.values[chunk], values, first + chunk * Values::kDepth, 0, num_columns);
        }
      });
    };
    struct Row {
      float most, sum;
    };
    PerThread<Row, kThreads> own;
    Scores scores;
    Values sums;
    sums.clear(block);
    block.each_thread([&](int thread) {
      own[thread] = {nothing(), 0};
      ASPEN_UNROLL for (int chunk = 0; chunk < kScoreChunks; ++chunk) {
        load_lines<kRows, Scores::kDepth, Scores::kRowStride>(block, thread, memory.queries[chunk], queries,
                                                              chunk * Scores::kDepth, num_rows,
                                                              [&](int, int row) { return queries.line(row); });
      }
    });
    load_keys(0);
    block.commit();
    load_values(0);
    block.commit();
    for (int first = 0; first < num_keys; first += kKeys) {
      block.template wait<1>();
      block.sync();
      scores.clear(block);
      ASPEN_UNROLL for (int chunk = 0; chunk < kScoreChunks; ++chunk) {
        scores.multiply(block, memory.queries[chunk], memory.keys[chunk]);
      }
      scores.each(block, [&](int row, int key, float sum) {
        const bool counts = row < num_rows && first + key < num_keys;
        memory.scores[row][key] = counts ? as_float(score(row, first + key, as_bits(sum))) : nothing();
      });
      block.sync();
      if (first + kKeys < num_keys) load_keys(first + kKeys);
      block.commit();

      PerThread<float, kThreads> found;
      block.each_thread([&](int thread) {
        float most = own[thread].most;
        for (int key = Rows::walker(thread); key < kKeys; key += Rows::kWalkers) {
          most = larger(most, memory.scores[Rows::row(thread)][key]);
        }
        found[thread] = most;
      });
      Rows::reduce(block, memory.team, found, larger);
      block.each_thread([&](int thread) {
        const int row = Rows::row(thread);
        // A row of nothing but -inf so far has no weights; where all of it is, the sum stays 0 and the result is NaN.
        const float most = found[thread], base = most == nothing() ? 0.0f : most;
        float sum = 0;
        for (int key = Rows::walker(thread); key < kKeys; key += Rows::kWalkers) {
          const float weight = expf(memory.scores[row][key] - base);
          sum += weight;
          memory.weights[key / Values::kDepth][row * Values::kRowStride + key % Values::kDepth] = narrow(weight);
        }
        found[thread] = sum;
        const float scale = expf(own[thread].most - base);
        own[thread].most = most;
        own[thread].sum *= scale;
        if (Rows::walker(thread) == 0) memory.scales[row] = scale;
      });
      Rows::reduce(block, memory.team, found, [](float a, float b) { return a + b; });
      block.each_thread([&](int thread) { own[thread].sum += found[thread]; });

      block.template wait<1>();
      block.sync();
      sums.each(block, [&](int row, int, float& sum) { sum *= memory.scales[row]; });
      ASPEN_UNROLL for (int chunk = 0; chunk < kValueChunks; ++chunk) {
        sums.multiply(block, memory.weights[chunk], memory.values[chunk]);
      }
      block.sync();
      if (first + kKeys < num_keys) load_values(first + kKeys);
      block.commit();
    }
    block.template wait<0>();
    block.each_thread([&](int thread) {
      if (Rows::walker(thread) == 0) memory.scales[Rows::row(thread)] = own[thread].sum;
    });
    block.sync();
    sums.each(block, [&](int row, int column, float sum) {
      if (row < num_rows && column < num_columns) store(row, column, sum / memory.scales[row]);
    });
    block.sync();
  }

 private:
  static ASPEN_DEVICE float nothing() { return as_float(0xff800000u); }  // -inf
  static ASPEN_DEVICE float larger(float a, float b) { return a != a || a > b ? a : b; }
};

}  // namespace aspen::cuda
