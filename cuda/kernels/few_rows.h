// Products of so few rows that reading the columns is all there is to do: every thread adds up in float32, nothing passes through
// shared memory but partial sums.
#pragma once

#include <cstdint>

#include "block.h"
#include "cluster.h"
#include "teams.h"
#include "tile.h"

namespace aspen::cuda {

// Adjacent columns: kAcross threads have kVector of them each, and kAlong such rows of threads share the depth.
// rows: [num_rows, depth], columns: [depth, num_columns] -> sums: [num_rows, num_columns], num_rows <= kRows.
template <class Stored, int kRows, int kVector>
struct FewRows {
  static constexpr int kThreads = 256;
  static constexpr int kAcross = 8, kAlong = kThreads / kAcross;
  static constexpr int kColumns = kAcross * kVector;  // at once
  struct Memory {
    float sums[kAlong][kRows][kColumns];  // [along]: partial sums over k = along, along + kAlong, ...
    float totals[kRows][kColumns];        // sums of a slice
  };

  // Calls store(row, column, sum) for num_rows x num_columns elements: element (k, c) of the columns is at columns[k * stride +
  // c], a row is what `rows` gives for it, its elements step apart. num_columns is a multiple of kVector.
  //
  // Each of kSlices blocks of a cluster sums a slice. Then it adds up a share of the sums, slice by slice, and stores that.
  template <int kSlices, class Rows, class Element, class Store>
  static ASPEN_DEVICE void multiply(Memory& memory, const Rows& rows, int64_t step, const Element* columns, int64_t stride,
                                    int num_rows, int num_columns, int depth, const Store& store) {
    Block<kThreads> block;
    for (int first = 0; first < num_columns; first += kColumns) {
      block.each_thread([&](int thread) {
        const int along = thread / kAcross, column = thread % kAcross * kVector;
        float sums[kRows][kVector] = {};  // columns first + column to first + column + kVector - 1
        if (first + column < num_columns) {
          ASPEN_UNROLL_4 for (int k = along; k < depth; k += kAlong) {
            const auto vector = load_vector<kVector>(columns + k * stride + first + column);
            ASPEN_UNROLL for (int row = 0; row < kRows; ++row) {
              if (row >= num_rows) continue;
              const float a = as_float(Stored::load(rows(row), k * step));
              ASPEN_UNROLL for (int i = 0; i < kVector; ++i) sums[row][i] += a * as_float(Stored::load(vector.elements, i));
            }
          }
        }
        ASPEN_UNROLL for (int row = 0; row < kRows; ++row) {
          ASPEN_UNROLL for (int i = 0; i < kVector; ++i) memory.sums[along][row][column + i] = sums[row][i];
        }
      });
      block.sync();
      block.each_thread([&](int thread) {
        for (int element = thread; element < num_rows * kColumns; element += kThreads) {
          const int row = element / kColumns, column = element % kColumns;
          if (first + column >= num_columns) continue;
          float sum = 0;
          for (int along = 0; along < kAlong; ++along) sum += memory.sums[along][row][column];
          if constexpr (kSlices > 1) {
            memory.totals[row][column] = sum;
          } else {
            store(row, first + column, sum);
          }
        }
      });
      Cluster<kSlices>::sync(block);
      if constexpr (kSlices > 1) {
        add_slices<kSlices>(block, memory, num_rows, num_columns - first,
                            [&](int row, int column, float sum) { store(row, first + column, sum); });
        Cluster<kSlices>::sync(block);  // before the totals are written again, or the block ends
      }
    }
  }

 private:
  // totals: [kRows, kColumns] of each of kSlices blocks -> store(row, column, sum) for this block's share of the sums.
  template <int kSlices, class Store>
  static ASPEN_DEVICE void add_slices(Block<kThreads>& block, Memory& memory, int num_rows, int num_columns, const Store& store) {
    block.each_thread([&](int thread) {
      for (int element = thread * kSlices + Cluster<kSlices>::rank(); element < num_rows * kColumns;
           element += kSlices * kThreads) {
        const int row = element / kColumns, column = element % kColumns;
        if (column >= num_columns) continue;
        float sum = *Cluster<kSlices>::of(&memory.totals[row][column], 0);
        for (int slice = 1; slice < kSlices; ++slice) sum += *Cluster<kSlices>::of(&memory.totals[row][column], slice);
        store(row, column, sum);
      }
    });
  }
};

// Columns along the depth: a warp takes some at a time, its lanes vectors of them.
// rows: [num_rows, depth], columns: [num_columns, depth] -> sums: [num_rows, num_columns], num_rows <= kRows.
template <class Stored, int kRows, int kVector>
struct FewRowsByLines {
  static constexpr int kThreads = 256;
  using OneWarp = Team<kThreads, kWarp, 1>;
  // Adjacent columns of a warp: so many reads are under way before a sum is waited for. More rows need the registers.
  static constexpr int kColumns = kRows <= 2 ? 4 : 1;
  struct Memory {
    typename OneWarp::template Memory<float> unused;
  };

  // Calls store(row, column, sum) for num_rows x num_columns elements: column c is at columns + c * stride, adjacent along the
  // depth, as rows are. The depth is a multiple of kVector. Lanes share the depth, so no blocks do.
  template <int kSlices, class Rows, class Element, class Store>
  static ASPEN_DEVICE void multiply(Memory& memory, const Rows& rows, int64_t, const Element* columns, int64_t stride,
                                    int num_rows, int num_columns, int depth, const Store& store) {
    static_assert(kSlices == 1);
    Block<kThreads> block;
    struct Sums {
      float of[kColumns][kRows];  // a lane's share of each sum
    };
    PerThread<Sums, kThreads> sums;
    for (int first = 0; first < num_columns; first += OneWarp::kRows * kColumns) {
      const auto column_of = [&](int thread, int number) { return first + OneWarp::row(thread) * kColumns + number; };
      block.each_thread([&](int thread) {
        Sums own = {};
        ASPEN_UNROLL_4 for (int k = OneWarp::walker(thread) * kVector; k < depth; k += kWarp * kVector) {
          Vector<Element, kVector> vectors[kColumns] = {};  // [kColumns, kVector]: elements k to k + kVector - 1 of each column
          ASPEN_UNROLL for (int number = 0; number < kColumns; ++number) {
            const int column = column_of(thread, number);
            if (column < num_columns) vectors[number] = load_vector<kVector>(columns + column * stride + k);
          }
          ASPEN_UNROLL for (int row = 0; row < kRows; ++row) {
            if (row >= num_rows) continue;
            const auto line = load_vector<kVector>(rows(row) + k);
            ASPEN_UNROLL for (int number = 0; number < kColumns; ++number) {
              float& sum = own.of[number][row];
              ASPEN_UNROLL for (int i = 0; i < kVector; ++i) {
                sum += as_float(Stored::load(line.elements, i)) * as_float(Stored::load(vectors[number].elements, i));
              }
            }
          }
        }
        sums[thread] = own;
      });
      ASPEN_UNROLL for (int number = 0; number < kColumns; ++number) {
        ASPEN_UNROLL for (int row = 0; row < kRows; ++row) {
          PerThread<float, kThreads> sum;
          block.each_thread([&](int thread) { sum[thread] = sums[thread].of[number][row]; });
          OneWarp::reduce(block, memory.unused, sum, [](float a, float b) { return a + b; });
          block.each_thread([&](int thread) {
            const int column = column_of(thread, number);
            if (OneWarp::walker(thread) == 0 && row < num_rows && column < num_columns) store(row, column, sum[thread]);
          });
        }
      }
    }
  }
};

}  // namespace aspen::cuda
