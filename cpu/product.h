// A tile of a matrix product, blocked for the caches: rows x columns x runs of depth (gemm.h), with the epilogue applied to each
// block of rows while it is hot. matmul and conv2d differ only in where the rows come from and how they lie in the output: what
// they say of that is a ProductSource.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "axpy.h"
#include "dots.h"
#include "gemm.h"
#include "panels.h"

namespace aspen::cpu::ASPEN_TARGET {

// A piece of the inner dimension: several whole runs, or a part of one.
struct Chunk {
  int64_t run, runs;
  int64_t begin, depth;  // within each run
};

// Weights that are multiplied where they lie.
template <class P>
concept WeightPointer = std::same_as<P, const float*> || std::same_as<P, const F16*> || std::same_as<P, const BF16*>;

// The rows of a product: where the left operand's lie, and where sums go.
template <class S>
concept ProductRows = requires(const S& source, int64_t row, int rows, int64_t column, int64_t columns, const Chunk& chunk,
                               const float** pointers, float* gathered, Finish& finish, const float* sums, int64_t stride) {
  // Fills pointers[run * kBlockRows + r] for the chunk's runs. `gathered` has room for the block's rows of the chunk.
  { source.point(row, rows, chunk, pointers, gathered) } -> std::same_as<void>;
  // Where a block goes once `finish`, which this fills in, is done on it in registers; nullptr where it cannot go there. The next
  // block of these columns comes with what was filled in for the last one.
  { source.direct(row, rows, column, finish) } -> std::same_as<float*>;
  { source.direct_stride() } -> std::same_as<int64_t>;
  // Takes the sums of a block that does not go there.
  { source.finish(row, rows, column, columns, sums, stride) } -> std::same_as<void>;
  // How many columns the right operand has from there on, beyond the tile too, more or less.
  { source.columns_from(column) } -> std::same_as<int64_t>;
};

// What is left to do on a block that has gone to `direct`, where its Finish does not complete it.
template <class S>
concept CompletesBlocks = requires(const S& source, int64_t row, int rows, int64_t column, int64_t columns) {
  { source.complete(row, rows, column, columns) } -> std::same_as<void>;
};

// A right operand that is stored in panels.
template <class S>
concept InPanels = requires(const S& source, int64_t column) {
  { source.panels() } -> std::same_as<StoredPanels>;
  // Which of its columns one of the tile is.
  { source.panels_column(column) } -> std::same_as<int64_t>;
};

// A right operand that is packed, or read in place.
template <class S>
concept InMatrix = requires(const S& source, int64_t column, int64_t columns, const Chunk& chunk, float* packed) {
  { source.pack(column, columns, chunk, packed) } -> std::same_as<void>;
  // The first row of the chunk, from the column on; nullptr where columns are not adjacent or rows not equally far apart.
  { source.weights(column, chunk) } -> WeightPointer;
  { source.weights_stride() } -> std::same_as<int64_t>;
};

// One that can also be read in place column by column, where rows are few.
template <class S>
concept ReadsColumns = InMatrix<S> && !InPanels<S> && requires(const S& source, int64_t column, const Chunk& chunk) {
  // The column, from the chunk's first row on; nullptr where its elements are not adjacent.
  { source.weight_columns(column, chunk) } -> WeightPointer;
  { source.weight_columns_stride() } -> std::same_as<int64_t>;
};

template <class S>
concept ProductSource = ProductRows<S> && (InPanels<S> || InMatrix<S>);

// How a product is cut, decided once for an op.
class ProductPlan {
 public:
  // A chunk of packed weights and the rows of the left operand that are multiplied with it share the L2 cache.
  static constexpr int64_t kPackedFloats = 96 * 1024;

  // Up to `whole` products the inner dimension is not cut; else into pieces of about `part`, long enough to hide the cost of
  // adding to the sums that wait in memory.
  struct Sums {
    int64_t whole, part;
  };
  // What is done with the sums at the end mostly happens in registers, if they need not wait.
  static constexpr Sums kLongSums{kPackedFloats / kPanel, 1536};
  // As many columns as fit beside such a piece are wide enough to read a matrix in place, whose rows lie on pages of their own.
  static constexpr Sums kShortSums{768, 768};

  ProductPlan() = default;

  // A row is `runs` runs of `depth`. `gathers`: rows may have to be copied before they can be multiplied. `sums`: how many
  // products are summed at once.
  ProductPlan(int64_t runs, int64_t depth, int64_t columns, bool gathers, Sums sums = kLongSums) : runs_(runs), depth_(depth) {
    const int64_t inner = std::max<int64_t>(runs * depth, 1);
    if (inner <= sums.whole) {
      chunk_runs_ = runs;
      chunk_depth_ = depth;
    } else if (depth >= sums.part) {
      chunk_runs_ = 1;
      chunk_depth_ = ceil_div(depth, ceil_div(depth, sums.part));
    } else {
      chunk_runs_ = ceil_div(runs, ceil_div(inner, sums.part));
      chunk_depth_ = depth;
    }
    const int64_t chunk = std::max<int64_t>(chunk_runs_ * chunk_depth_, 1);
    columns_ = std::min(std::max<int64_t>(kPackedFloats / chunk / kPanel, 1) * kPanel, kMaxColumns);
    columns_ = std::min(columns_, round_up(std::max<int64_t>(columns, 1), kPanel));
    pointers_bytes_ = round_up(chunk_runs_ * kBlockRows * static_cast<int64_t>(sizeof(const float*)), 64);
    gathered_bytes_ = gathers ? round_up(chunk * kBlockRows * 4, 64) : 0;
    packed_bytes_ = round_up(chunk * columns_ * 4, 64);
  }

  int64_t runs() const { return runs_; }
  int64_t depth() const { return depth_; }
  int64_t chunk_depth() const { return chunk_depth_; }
  bool one_chunk() const { return chunk_runs_ == runs_ && chunk_depth_ == depth_; }
  size_t scratch_bytes() const { return static_cast<size_t>(pointers_bytes_ + gathered_bytes_ + packed_bytes_ + kSumFloats * 4); }

  // Computes a tile of `rows` x `columns`, which count from the source's first ones.
  template <ProductSource Source>
  void run(const Source& source, int64_t rows, int64_t columns, std::byte* scratch) const {
    if (rows <= 0 || columns <= 0) return;
    auto* const pointers = reinterpret_cast<const float**>(scratch);
    auto* const gathered = reinterpret_cast<float*>(scratch + pointers_bytes_);
    auto* const packed = reinterpret_cast<float*>(scratch + pointers_bytes_ + gathered_bytes_);
    auto* const sums = reinterpret_cast<float*>(scratch + pointers_bytes_ + gathered_bytes_ + packed_bytes_);
    const bool by_columns = reads_columns(source, rows);
    const bool in_place = by_columns || reads_in_place(source, rows);
    const bool by_rows =
        in_place && !by_columns && !InPanels<Source> && rows <= kFewRows && columns > kPanel && runs_ * depth_ > 0;
    // Equal passes, so that none is a thin remainder.
    const int64_t widest = in_place && rows <= kFewRows ? kSumFloats / kBlockRows / kPanel * kPanel : columns_;
    const int64_t pass = round_up(ceil_div(columns, ceil_div(columns, widest)), InPanels<Source> ? kStoredPanel : kPanel);
    const int64_t band = one_chunk() ? rows : std::max<int64_t>(kSumFloats / pass, 1);
    for (int64_t column = 0; column < columns; column += pass) {
      const int64_t width = std::min(pass, columns - column);
      const int64_t stride = round_up(width, kLanes);
      Finish finish;
      for (int64_t top = 0; top < rows; top += band) {
        const int64_t height = std::min(band, rows - top);
        for (Chunk chunk{0, chunk_runs_, 0, chunk_depth_}; chunk.run < std::max<int64_t>(runs_, 1); advance(chunk)) {
          chunk.runs = std::min(chunk_runs_, runs_ - chunk.run);
          chunk.depth = std::min(chunk_depth_, depth_ - chunk.begin);
          const bool last = chunk.run + chunk.runs >= runs_ && chunk.begin + chunk.depth >= depth_;
          Block block;
          block.pointers = pointers;
          block.runs = chunk.runs;
          block.depth = chunk.depth;
          block.accumulate = chunk.run > 0 || chunk.begin > 0;
          if (!in_place) source.pack(column, width, chunk, packed);
          const int64_t blocks = ceil_div(height, kBlockRows);
          const bool packs = blocks >= kPackingBlocks && !InPanels<Source>;
          const bool fetches = InPanels<Source> ? blocks > 1 : packs && in_place;
          Ahead ahead = fetches ? following(source, column, width, chunk, last) : Ahead{};
          const int64_t least_rows = height / blocks, larger = height % blocks;
          int64_t row = top;
          for (int64_t i = 0; i < blocks; ++i, row += block.rows) {
            block.rows = static_cast<int>(least_rows + (i < larger));
            source.point(row, block.rows, chunk, pointers, gathered);
            const bool is_packed = !in_place || (packs && i > 0);
            float* direct = one_chunk() ? source.direct(row, block.rows, column, finish) : nullptr;
            block.out = direct != nullptr ? direct : one_chunk() ? sums : sums + (row - top) * stride;
            block.out_stride = direct != nullptr ? source.direct_stride() : stride;
            block.finish = direct != nullptr && finish.length > 0 ? &finish : nullptr;
            block.exact = direct != nullptr;
            if constexpr (InPanels<Source>) {
              multiply_panels(block, source.panels(), first_row(chunk), source.panels_column(column), width, ahead);
            } else if (by_columns) {
              if constexpr (ReadsColumns<Source>) {
                multiply_columns(block, RightOperand{source.weight_columns(column, chunk), source.weight_columns_stride()},
                                 width);
              }
            } else if (is_packed) {
              multiply_packed(block, packed, width, ahead);
            } else if (const RightOperand weights{source.weights(column, chunk), source.weights_stride()}; by_rows) {
              add_scaled_rows(block, weights, width);
            } else if (!packs) {
              multiply(block, weights, width);
            } else if constexpr (!Narrow<std::remove_cvref_t<decltype(*weights.at)>>) {
              multiply_and_pack(block, weights, width, packed);
            }
            if (last && direct == nullptr) source.finish(row, block.rows, column, width, block.out, stride);
            if constexpr (CompletesBlocks<Source>) {
              if (direct != nullptr && !finish.completes) source.complete(row, block.rows, column, width);
            }
          }
        }
      }
    }
  }

 private:
  // Sums that wait for the next chunk.
  static constexpr int64_t kSumFloats = 32 * 1024;
  static constexpr int64_t kMaxColumns = 512;
  // From this many blocks of rows on, the right operand is packed while it is multiplied with the first of them.
  static constexpr int64_t kPackingBlocks = 3;
  static_assert(kSumFloats >= kMaxColumns * kBlockRows);

  template <class Source>
  static bool reads_columns(const Source& source, int64_t rows) {
    if constexpr (ReadsColumns<Source>) {
      return rows <= kFewRows && source.weight_columns(0, Chunk{0, 1, 0, 0}) != nullptr;
    }
    return false;
  }

  template <class Source>
  static bool reads_in_place(const Source& source, int64_t rows) {
    if constexpr (InPanels<Source>) {
      return true;
    } else {
      // Many rows would widen floats of 16 bits again for each block; packed, they are widened once.
      using T = std::remove_cvref_t<decltype(*source.weights(0, Chunk{}))>;
      return (!Narrow<T> || rows <= kFewRows) && source.weights(0, Chunk{0, 1, 0, 0}) != nullptr;
    }
  }

  // The row of the right operand with which a chunk begins.
  int64_t first_row(const Chunk& chunk) const { return chunk.run * depth_ + chunk.begin; }

  // What is read after a chunk of some columns: the next chunk of theirs, or the first of the columns behind them, which are
  // those of the next tile where they are not of this one.
  template <class Source>
  Ahead following(const Source& source, int64_t column, int64_t width, Chunk chunk, bool last) const {
    if (last) {
      column += width;
      width = std::max<int64_t>(std::min(width, source.columns_from(column)), 0);
      chunk = {};
    } else {
      advance(chunk);
    }
    if constexpr (InPanels<Source>) {
      const int64_t first = source.panels_column(column) / kStoredPanel * kStoredPanel;
      const int64_t panels = ceil_div(source.panels_column(column) + width - first, kStoredPanel);
      return {source.panels().find(first_row(chunk), first), kStoredPanel, panels * kStoredPanel * 4 / kCacheLine};
    } else if constexpr (std::is_same_v<decltype(source.weights(column, chunk)), const float*>) {
      return {source.weights(column, chunk), source.weights_stride(), ceil_div(width * 4, kCacheLine)};
    }
    return {};
  }

  void advance(Chunk& chunk) const {
    chunk.begin += chunk.depth;
    if (chunk.begin >= depth_) {
      chunk.begin = 0;
      chunk.run += std::max<int64_t>(chunk.runs, 1);
    }
  }

  int64_t runs_ = 0;
  int64_t depth_ = 0;
  int64_t chunk_runs_ = 0;
  int64_t chunk_depth_ = 0;
  int64_t columns_ = 0;
  int64_t pointers_bytes_ = 0;
  int64_t gathered_bytes_ = 0;
  int64_t packed_bytes_ = 0;
};

}  // namespace aspen::cpu::ASPEN_TARGET
