// What becomes of the scores of some keys: each row's largest so far, the weights e^(score - largest), and their sum so far
// (online softmax).
//
// Scores pass through shared memory, or stay in the registers of the warp that has all of a row's. Both do the same:
//   begin     forgets all rows, before the first keys
//   score     makes scores of sums of products: [kRows, kKeys] -> [kRows, kKeys]
//   weigh     makes weights of scores: [kRows, kKeys] -> weights: [kRows, kKeys], scales: [kRows]
//   scale     multiplies the sums so far, since a larger score came: [kRows, Values::kColumns] by scales [kRows]
//   multiply  multiplies weights with a chunk of the values: [kRows, Values::kDepth] by [Values::kDepth, Values::kColumns]
//   each_row  gives in the end a row's largest score, and the sum of its weights
#pragma once

#include <cstdint>

#include "block.h"
#include "held_rows.h"
#include "product.h"
#include "scalar.h"
#include "teams.h"

namespace aspen::cuda {

ASPEN_DEVICE float nothing() { return as_float(0xff800000u); }  // -inf
ASPEN_DEVICE float larger_of(float a, float b) { return a != a || a > b ? a : b; }

// A row's largest score and sum of weights so far. Where all scores so far are -inf it has no weights; where all of a row are,
// the sum stays 0 and the result is NaN.
struct SoftmaxRow {
  float most = nothing(), sum = 0;

  // Gives what is subtracted from scores to compute weights.
  static ASPEN_DEVICE float base(float largest) { return largest == nothing() ? 0.0f : largest; }
  // Returns what the sums so far are multiplied with.
  ASPEN_DEVICE float rescale(float largest) {
    const float factor = expf(most - base(largest));
    most = largest;
    sum *= factor;
    return factor;
  }
};

template <class Scores, class Values>
class SharedWeights {
 public:
  using Element = typename Scores::Element;
  static constexpr int kThreads = Scores::kThreads, kRows = Scores::kRows, kKeys = Scores::kColumns;
  static_assert(kThreads % kRows == 0);
  using Rows = Team<kThreads, kThreads / kRows, 1>;

  struct Memory {
    // [kKeys / Values::kDepth] of [kRows, Values::kDepth], as Values has its rows.
    alignas(16) Element weights[kKeys / Values::kDepth][kRows * Values::kRowStride];
    float scores[kRows][kKeys + 2];  // [kRows, kKeys]; two lanes a row read them without meeting in a bank
    float scales[kRows];
    typename Rows::template Memory<float> team;
  };

  ASPEN_DEVICE void begin(Block<kThreads>& block) {
    block.each_thread([&](int thread) { own_[thread] = {}; });
  }

  template <class Score>
  ASPEN_DEVICE void score(Block<kThreads>& block, Memory& memory, Scores& scores, const Score& score) {
    scores.each(block, [&](int row, int key, float sum) { memory.scores[row][key] = score(row, key, sum); });
  }

  // Comes after a sync that follows `score`.
  template <class Narrow>
  ASPEN_DEVICE void weigh(Block<kThreads>& block, Memory& memory, Scores&, const Narrow& narrow) {
    PerThread<float, kThreads> found;
    block.each_thread([&](int thread) {
      float most = own_[thread].most;
      for (int key = Rows::walker(thread); key < kKeys; key += Rows::kWalkers) {
        most = larger_of(most, memory.scores[Rows::row(thread)][key]);
      }
      found[thread] = most;
    });
    Rows::reduce(block, memory.team, found, larger_of);
    block.each_thread([&](int thread) {
      const int row = Rows::row(thread);
      const float base = SoftmaxRow::base(found[thread]), scale = own_[thread].rescale(found[thread]);
      float sum = 0;
      for (int key = Rows::walker(thread); key < kKeys; key += Rows::kWalkers) {
        const float weight = expf(memory.scores[row][key] - base);
        sum += weight;
        memory.weights[key / Values::kDepth][row * Values::kRowStride + key % Values::kDepth] = narrow(weight);
      }
      found[thread] = sum;
      if (Rows::walker(thread) == 0) memory.scales[row] = scale;
    });
    Rows::reduce(block, memory.team, found, [](float a, float b) { return a + b; });
    block.each_thread([&](int thread) { own_[thread].sum += found[thread]; });
  }

  // Comes after a sync that follows `weigh`; so does `multiply`.
  ASPEN_DEVICE void scale(Block<kThreads>& block, Memory& memory, Values& sums) {
    sums.each(block, [&](int row, int, float& sum) { sum *= memory.scales[row]; });
  }
  ASPEN_DEVICE void multiply(Block<kThreads>& block, Memory& memory, Values& sums, int chunk, const Element* values) {
    sums.multiply(block, memory.weights[chunk], values);
  }

  template <class Visit>
  ASPEN_DEVICE void each_row(Block<kThreads>& block, const Visit& visit) {
    block.each_thread([&](int thread) {
      if (Rows::walker(thread) == 0) visit(Rows::row(thread), own_[thread].most, own_[thread].sum);
    });
  }

 private:
  PerThread<SoftmaxRow, kThreads> own_;  // row Rows::row(thread), alike for all its walkers
};

// Weights of HeldCores and HeldGroupCores: four lanes have the scores of a row, and each lane has two rows, eight apart.
template <class Scores, class Values>
class HeldWeights {
 public:
  using Element = typename Scores::Element;
  static constexpr int kThreads = Scores::kThreads;
  static_assert(Scores::kTall == 1 && Values::kTall == 1 && kThreads == Values::kThreads);
  struct Memory {};

  ASPEN_DEVICE void begin(Block<kThreads>& block) {
    block.each_thread([&](int thread) { own_[thread] = {}; });
  }

  template <class Score>
  ASPEN_DEVICE void score(Block<kThreads>& block, Memory&, Scores& scores, const Score& score) {
    scores.each(block, [&](int row, int key, float& sum) { sum = score(row, key, sum); });
  }

  template <class Narrow>
  ASPEN_DEVICE void weigh(Block<kThreads>& block, Memory&, Scores& scores, const Narrow& narrow) {
    PerThread<Pair, kThreads> found;
    block.each_thread([&](int thread) {
      ASPEN_UNROLL for (int half = 0; half < 2; ++half) found[thread].of[half] = own_[thread].of[half].most;
    });
    scores.each_half(block, [&](int thread, int half, float& score) {
      float& most = found[thread].of[half];
      most = larger_of(most, score);
    });
    across_lanes(block, found, larger_of);
    PerThread<Pair, kThreads> bases;
    block.each_thread([&](int thread) {
      ASPEN_UNROLL for (int half = 0; half < 2; ++half) {
        float& largest = found[thread].of[half];
        bases[thread].of[half] = SoftmaxRow::base(largest);
        scales_[thread].of[half] = own_[thread].of[half].rescale(largest);
        largest = 0;  // from here on the sum of weights
      }
    });
    scores.each_half(block, [&](int thread, int half, float& score) {
      score = expf(score - bases[thread].of[half]);
      found[thread].of[half] += score;
    });
    across_lanes(block, found, [](float a, float b) { return a + b; });
    block.each_thread([&](int thread) {
      ASPEN_UNROLL for (int half = 0; half < 2; ++half) own_[thread].of[half].sum += found[thread].of[half];
    });
    scores.hold(block, rows_, [&](int, int, float weight) {
      if constexpr (sizeof(Element) == 2) {
        return static_cast<uint32_t>(narrow(weight));
      } else {
        return as_bits(narrow(weight));
      }
    });
  }

  ASPEN_DEVICE void scale(Block<kThreads>& block, Memory&, Values& sums) {
    sums.each_half(block, [&](int thread, int half, float& sum) { sum *= scales_[thread].of[half]; });
  }
  ASPEN_DEVICE void multiply(Block<kThreads>& block, Memory&, Values& sums, int chunk, const Element* values) {
    sums.multiply_held(block, rows_, chunk * (Values::kDepth / Values::Kind::kDepth), values);
  }

  template <class Visit>
  ASPEN_DEVICE void each_row(Block<kThreads>& block, const Visit& visit) {
    block.each_thread([&](int thread) {
      if (thread % 4 != 0) return;
      ASPEN_UNROLL for (int half = 0; half < 2; ++half) {
        const SoftmaxRow& row = own_[thread].of[half];
        visit(thread / kWarp * 16 + thread % kWarp / 4 + 8 * half, row.most, row.sum);
      }
    });
  }

 private:
  struct Pair {
    float of[2];  // [half]: a lane's upper and lower row
  };
  struct Rows {
    SoftmaxRow of[2];  // [half]
  };

  template <class Combine>
  static ASPEN_DEVICE void across_lanes(Block<kThreads>& block, PerThread<Pair, kThreads>& values, const Combine& combine) {
    ASPEN_UNROLL for (int step = 1; step < 4; step *= 2) {
      block.exchange(values, step,
                     [&](const Pair& a, const Pair& b) { return Pair{{combine(a.of[0], b.of[0]), combine(a.of[1], b.of[1])}}; });
    }
  }

  PerThread<Rows, kThreads> own_;
  PerThread<Pair, kThreads> scales_;
  PerWarp<typename Scores::Rows, kThreads / kWarp> rows_;  // weights, of each warp [16, Scores::kColumns]
};

template <class Scores, class Values>
using WeightsOf =
    typename Either<requires { typename Scores::Rows; }, HeldWeights<Scores, Values>, SharedWeights<Scores, Values>>::Type;

}  // namespace aspen::cuda
