// A tile of attention: a box of the output, of whole rows of queries or some of them. It is cut into blocks of Own::kRows queries
// by Own::kColumns columns of the values, one for each matrix that the outer axes choose. A block goes through all keys
// (attention.h). So large a block of queries reads keys and values least often; of fewer queries less is computed for nothing.
//
// queries: [outer ..., rows, depth], keys: [outer ..., num_keys, depth], values: [outer ..., num_keys, num_columns] -> output:
// [outer ..., rows, num_columns]. The axes have any order, and operands may lack some of the outer ones.
//
// The output of slices has an axis more, which comes first, and behind the columns two numbers for each row: its largest score
// and its sum of weights, with which another kernel merges the slices. It is [slices, outer ..., rows, num_columns + 2].
#pragma once

#include "attention.h"
#include "boxes.h"
#include "matrices.h"

namespace aspen::cuda {

struct AttentionShape {
  int row_axis, column_axis;  // the output's axes along queries and along columns of the values; -1: there is one column
  Axes outer;                 // the output's other axes
  Axes scores;                // axes of the output that are those of the scores but the keys
  int depth, num_keys, num_columns;
  int slice;  // keys of a slice; 0: there are no slices
  MatrixShape queries, keys, values;
  int reach;          // all weights of row r are exact zeros from key r + reach on,
  uint32_t most;      // if no score is larger than this lane
  int run;            // adjacent sums that are stored at once
  MatrixMap maps[2];  // maps of keys and values; of rank 0: there are none
};

// Op::score gives what the softmax takes, of a sum of products at coordinates of the scores. Op::store ends an element of the
// output. Both are generated.
template <class Op, class Stored, class Scores, class Values, AttentionShape kShape>
struct AttentionTile : Op {
  using Addresses = typename Op::Addresses;
  static constexpr bool kInBoxes = kHasWarpgroups && kShape.maps[0].tensor.rank > 0;
  static_assert(!(kInBoxes && kShape.slice > 0), "boxes begin at the first key");
  using Own = Attention<Scores, Values, kShape.depth, (kShape.reach < kShape.num_keys), kInBoxes>;
  using Element = typename Own::Element;
  using Memory = typename Own::Memory;
  static constexpr int kThreads = Own::kThreads, kRank = Op::kRank;
  static constexpr int kRowAxis = kShape.row_axis, kColumnAxis = kShape.column_axis;
  static constexpr bool kSliced = kShape.slice > 0;
  // Columns are read in whole vectors, so that the first may lie before the box.
  static constexpr int kUnit = kShape.values.along_depth ? 1 : kShape.values.vector;

  static ASPEN_DEVICE constexpr TensorShape tensor(int number) { return kShape.maps[number].tensor; }

  // box: [2, kRank] of the output -> blocks of [Own::kRows, Own::kColumns].
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    const int parts = (last_column(box) - first_column(box) + Own::kColumns - 1) / Own::kColumns;
    const int blocks = (box[kRank + kRowAxis] - box[kRowAxis] + Own::kRows - 1) / Own::kRows;
    for (int all = 0; all < parts * blocks * count_along<kRank, kShape.outer>(box); ++all) {
      int at[kRank] = {};  // the block's first element; other axes than those below have one
      decode<kRank, kShape.outer>(box, all / parts / blocks, at);
      at[kRowAxis] = box[kRowAxis] + all / parts % blocks * Own::kRows;
      // The box is read anew for each block: registers are scarcer than what the cache has.
      const int column = first_column(box) + all % parts * Own::kColumns;
      if constexpr (kColumnAxis >= 0) at[kColumnAxis] = column;
      block_at(buffers, box, memory, at, min_of(last_column(box) - column, Own::kColumns));
    }
  }

 private:
  static ASPEN_DEVICE int first_column(const int32_t* box) {
    if constexpr (kColumnAxis < 0) {
      return 0;
    } else {
      // A box may lie behind the columns; one of them is computed all the same.
      const int first = kSliced ? min_of(box[kColumnAxis], kShape.num_columns - 1) : box[kColumnAxis];
      return first / kUnit * kUnit;
    }
  }
  static ASPEN_DEVICE int last_column(const int32_t* box) {
    if constexpr (kColumnAxis < 0) {
      return 1;
    } else {
      return kSliced ? min_of(box[kRank + kColumnAxis], kShape.num_columns) : box[kRank + kColumnAxis];
    }
  }

  // at: [kRank], the block's first element -> output: [num_rows, num_columns] from there on.
  static ASPEN_DEVICE void block_at(const Addresses& buffers, const int32_t* box, Memory& memory, const int* at,
                                    int num_columns) {
    const int first_key = kSliced ? at[0] * kShape.slice : 0;
    const int num_keys = kSliced ? min_of(kShape.num_keys - first_key, kShape.slice) : kShape.num_keys;
    const int num_rows = min_of(box[kRank + kRowAxis] - at[kRowAxis], Own::kRows);
    Own::template attend<kShape.run>(
        memory,  //
        matrix_at<kShape.queries, Element>(buffers, at, 0, kShape.depth),
        matrix_at<kShape.keys, Element>(buffers, at, first_key * int64_t{kShape.keys.line}, kShape.depth),
        matrix_at<kShape.values, Element>(buffers, at, first_key * int64_t{kShape.values.step}, num_keys), boxes_of(buffers, at),
        num_rows, num_keys, num_columns,
        typename Own::Mask{min_of(num_keys, at[kRowAxis] + num_rows - 1 + kShape.reach), as_float(uint32_t{kShape.most})},
        [&](int row, int key, uint32_t sum) {
          constexpr Axes scores = kShape.scores;
          int score_at[scores.count + 1];  // coordinates of the scores: [outer ..., row, key]
          ASPEN_UNROLL for (int i = 0; i < scores.count; ++i) score_at[i] = at[scores.of[i]];
          score_at[scores.count - 1] += row;
          score_at[scores.count] = first_key + key;
          return Op::score(buffers, score_at, sum);
        },
        [](float weight) { return narrowed(weight); }, [](const Element& element) { return as_float(Stored::load(&element, 0)); },
        [&]([[maybe_unused]] int row, [[maybe_unused]] float most, [[maybe_unused]] float total) {
          if constexpr (kSliced) store_numbers(buffers, box, at, row, most, total);
        },
        [&](int row, int column, const float* sums, int count, [[maybe_unused]] float total) {
          int own[kRank];
          ASPEN_UNROLL for (int d = 0; d < kRank; ++d) own[d] = at[d];
          own[kRowAxis] += row;
          if constexpr (kColumnAxis >= 0) own[kColumnAxis] += column;
          if constexpr (kShape.run > 1) {
            float quotients[kShape.run];
            ASPEN_UNROLL for (int i = 0; i < kShape.run; ++i) quotients[i] = sums[i] / total;
            finish_sums<Op, kColumnAxis, kShape.run>(buffers, box, own, quotients, count);
          } else {
            if constexpr (kSliced || kUnit > 1) {
              if (own[kColumnAxis] < box[kColumnAxis]) return;
            }
            Op::store(buffers, own, as_bits(kSliced ? sums[0] : sums[0] / total));
          }
        });
  }

  // Gives boxes of keys, and of values from the block's first column on.
  static ASPEN_DEVICE auto boxes_of([[maybe_unused]] const Addresses& buffers, [[maybe_unused]] const int* at) {
    if constexpr (kInBoxes) {
      const auto keys = boxes_at<kShape.maps[0]>(&buffers.maps[0], at, 0);
      const auto values = boxes_at<kShape.maps[1]>(&buffers.maps[1], at, kColumnAxis < 0 ? 0 : at[max_of(kColumnAxis, 0)]);
      return KeyBoxes{keys, values};
    } else {
      return NoBoxes{};
    }
  }

  // Stores what a slice says of a row behind its columns, as far as the box has it: output [..., num_columns] is `most`, and
  // [..., num_columns + 1] is `total`.
  static ASPEN_DEVICE void store_numbers(const Addresses& buffers, const int32_t* box, const int* at, int row, float most,
                                         float total) {
    int own[kRank];
    ASPEN_UNROLL for (int d = 0; d < kRank; ++d) own[d] = at[d];
    own[kRowAxis] += row;
    ASPEN_UNROLL for (int number = 0; number < 2; ++number) {
      own[kRank - 1] = kShape.num_columns + number;
      if (own[kRank - 1] < box[kRank - 1] || own[kRank - 1] >= box[2 * kRank - 1]) continue;
      Op::store(buffers, own, as_bits(number == 0 ? most : total));
    }
  }

  static ASPEN_DEVICE Element narrowed(float weight) {
    if constexpr (kIsSame<Element, float>) {
      return weight;
    } else {
      return Stored::narrowed(weight);
    }
  }
};

}  // namespace aspen::cuda
