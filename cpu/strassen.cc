// strassen: a matrix product by one step of Strassen's algorithm in Winograd's form, seven products of quarters where the direct
// way takes eight. strassen_rows prepares the left operand.
//
// Quarters are not blocks: rows 2i and 2i + 1 make a pair, as do panels 2p and 2p + 1 of 32 columns, and element k of the inner
// dimension and k + K/2. So an element of the result is computed alike wherever tiles are cut, and from neighbouring rows only.
// With quarters aij and bij, and
//   s1 = a21 + a22, s2 = s1 - a11, s3 = a11 - a21, s4 = a12 - s2,
//   t1 = b12 - b11, t2 = b22 - t1, t3 = b22 - b12, t4 = b21 - t2,
// the seven products are
//   p0 = a11 b11, p1 = a12 b21, p2 = s1 t1, p3 = s2 t2, p4 = s3 t3, p5 = s4 b22, p6 = a22 t4,
// and with u = p0 + p3 and v = u + p2 the result's quarters are
//   c11 = p0 + p1, c12 = v + p5, c21 = u + p4 + p6, c22 = v + p4.
// strassen_rows turns a [..., M, K] into the left factors [8, ..., ceil(M/2), more than K/2], with zeros for a row that is
// missing and beyond K/2. The right factors are [8, ceil(N/64), K/2, 32].
//
// So a value that is not finite, or so large that its neighbours are lost beside it, would reach the other row of its pair, or
// the other panel. Where two rows are so, their first factor has a one at K/2, and where two panels are, their t1 is NaN: they
// are multiplied directly. For that the eighth factors are the quarters that no other is, a21 and b12.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "epilogue.h"
#include "gemm.h"
#include "shapes.h"
#include "spec_reader.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_strassen(const OpSpec& spec);
PreparedOp prepare_strassen_rows(const OpSpec& spec);

namespace {

constexpr int kProducts = 7, kFactors = 8;
// Which factors are quarters.
enum { kLeft11 = 0, kLeft12 = 1, kLeft21 = 7, kLeft22 = 6, kRight11 = 0, kRight12 = 7, kRight21 = 1, kRight22 = 5 };
constexpr int kMarked = 2;  // the right factor that is NaN where panels are marked
// Binary exponents that the largest elements of two rows may lie apart, and how large they may be. A row of zeros counts as 2^16,
// as a ReLU makes many. ops/strassen.py has the same for panels.
constexpr int32_t kMostApart = 12 << 23, kLargest = (127 + 120) << 23, kOfZeros = (127 + 16) << 23;
constexpr int64_t kColumns = 2 * kStoredPanel;  // of a pair of panels

// ---- the left factors

struct Rows final : OpState {
  int lead;  // dimensions in front of rows
  int64_t rows, half;
  int64_t strides[kMaxRank];      // of a
  int64_t out_strides[kMaxRank];  // of the factors: first that of a factor
};

// Elements [begin, end) of factor `product` of a pair of rows whose second halves begin `half` elements behind the first.
void add_rows(int product, const float* upper, const float* lower, int64_t half, int64_t begin, int64_t end, float* to) noexcept {
  const auto each = [&](auto sum) __attribute__((always_inline)) {
    int64_t k = begin;
    for (; k + kLanes <= end; k += kLanes) store(to + k, sum([k](const float* row) { return load(row + k); }));
    for (; k < end; ++k) to[k] = sum([k](const float* row) { return row[k]; });
  };
  const float* const a11 = upper;
  const float* const a12 = upper + half;
  const float* const a21 = lower;
  const float* const a22 = lower + half;
  switch (product) {
    case 0:
      return each([&](auto at) __attribute__((always_inline)) { return at(a11); });
    case 1:
      return each([&](auto at) __attribute__((always_inline)) { return at(a12); });
    case 2:
      return each([&](auto at) __attribute__((always_inline)) { return at(a21) + at(a22); });
    case 3:
      return each([&](auto at) __attribute__((always_inline)) { return at(a21) + at(a22) - at(a11); });
    case 4:
      return each([&](auto at) __attribute__((always_inline)) { return at(a11) - at(a21); });
    case 5:
      return each([&](auto at) __attribute__((always_inline)) { return at(a12) - (at(a21) + at(a22) - at(a11)); });
    case 6:
      return each([&](auto at) __attribute__((always_inline)) { return at(a22); });
    case 7:
      return each([&](auto at) __attribute__((always_inline)) { return at(a21); });
  }
}

// The largest magnitude of a row, as the bits of a float: the bits of what is not finite are the largest.
int32_t largest_of(const float* row, int64_t count) noexcept {
  Ints largest = {};
  for (int64_t k = 0; k < count; k += kLanes) {
    const Floats x = load_partial(row + k, static_cast<int>(std::min<int64_t>(kLanes, count - k)));
    largest = max(largest, as_ints(x) & std::numeric_limits<int32_t>::max());
  }
  int32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits = std::max<int32_t>(bits, largest[lane]);
  return bits;
}

// Whether one of two rows would spoil the other.
bool are_apart(const float* upper, const float* lower, int64_t count) noexcept {
  const int32_t a = largest_of(upper, count), b = largest_of(lower, count);
  const int32_t least = std::min(a == 0 ? kOfZeros : a, b == 0 ? kOfZeros : b), most = std::max(a, b);
  return most > kLargest || most - least > kMostApart;
}

const char* run_rows(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Rows*>(args.state);
  const int row_axis = op.lead + 1, inner = op.lead + 2;
  for (int d = 0; d <= inner; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
  }
  auto* const zeros = reinterpret_cast<float*>(args.scratch);
  if (2 * int64_t{args.hi[row_axis]} > op.rows) std::fill_n(zeros, 2 * op.half, 0.0f);
  const int64_t begin = args.lo[inner], end = std::min<int64_t>(args.hi[inner], op.half);
  int64_t at[kMaxRank];
  std::copy_n(args.lo, row_axis, at);
  for (;;) {
    const float* from = static_cast<const float*>(args.inputs[0]);
    float* to = static_cast<float*>(args.output);
    for (int d = 1; d < row_axis; ++d) {
      from += at[d] * op.strides[d - 1];
      to += at[d] * op.out_strides[d];
    }
    for (int64_t pair = args.lo[row_axis]; pair < args.hi[row_axis]; ++pair) {
      const float* const upper = from + 2 * pair * op.strides[op.lead];
      const float* const lower = 2 * pair + 1 < op.rows ? upper + op.strides[op.lead] : zeros;
      for (int product = args.lo[0]; product < args.hi[0]; ++product) {
        float* const row = to + product * op.out_strides[0] + pair * op.out_strides[row_axis];
        if (begin < end) add_rows(product, upper, lower, op.half, begin, end, row);
        for (int64_t k = std::max(begin, op.half); k < args.hi[inner]; ++k) {
          row[k] = product == 0 && k == op.half && are_apart(upper, lower, 2 * op.half) ? 1.0f : 0.0f;
        }
      }
    }
    int d = row_axis - 1;
    for (; d > 0; --d) {
      if (++at[d] < args.hi[d]) break;
      at[d] = args.lo[d];
    }
    if (d == 0) return nullptr;
  }
}

// ---- the product

// What is multiplied at a time: so much of the inner dimension, as longer sums round worse,
constexpr int64_t kMostDepth = 512;
// and so many pairs of rows that their products stay in the L2 cache beside a right factor.
constexpr int64_t kMostPairs = 128;

// Pairs of rows whose sums stay in the L1 cache.
constexpr int64_t kFinishedPairs = 16;

struct Strassen final : OpState {
  int lead;
  int64_t half;                   // of the inner dimension
  int64_t rows;                   // of a matrix of the output
  int64_t pairs;                  // of panels
  int64_t columns;                // of the output
  int64_t strides[kMaxRank + 1];  // of the left factors: that of a factor, of the leading dimensions, of a pair of rows
  bool lines_adjacent;            // the left factors of two indices of the last leading dimension follow each other
  int64_t factor;                 // from a right factor to the next,
  int64_t panel;                  // and from a pair of panels to the next
  Epilogue epilogue;
};

constexpr int64_t product_floats(int64_t pair_rows) { return kProducts * pair_rows * kStoredPanel; }

// The seven products of `count` pairs of rows, the first at `left`, with a pair of panels: [7, count, 32].
void multiply_pairs(const Strassen& op, const float* left, int64_t count, const float* right, const float* next,
                    float* products) noexcept {
  const int64_t row_stride = op.strides[op.lead + 1], blocks = ceil_div(count, kBlockRows);
  const int64_t steps = ceil_div(op.half, kMostDepth);
  Block block;
  block.runs = 1;
  block.out_stride = kStoredPanel;
  for (int product = 0; product < kProducts; ++product, right += op.factor) {
    for (int64_t step = 0, begin = 0; step < steps; ++step, begin += block.depth) {
      block.depth = op.half / steps + (step < op.half % steps);
      block.accumulate = step > 0;
      block.out = products + product * count * kStoredPanel;
      const float* const following = step + 1 < steps          ? right + (begin + block.depth) * kStoredPanel
                                     : product + 1 < kProducts ? right + op.factor
                                                               : next;
      Ahead weights;
      if (following != nullptr) weights = {following, kStoredPanel, kStoredPanel * 4 / kCacheLine};
      const float* row = left + product * op.strides[0] + begin;
      for (int64_t i = 0; i < blocks; ++i) {
        block.rows = static_cast<int>(count / blocks + (i < count % blocks));
        const float* pointers[kBlockRows];
        for (int r = 0; r < block.rows; ++r, row += row_stride) pointers[r] = row;
        block.pointers = pointers;
        // Once the next right factor is on its way, the next rows: streams so many and so short the hardware does not foresee.
        Ahead rows{row, kCacheLine / 4, steps == 1};
        multiply_panels(block, {right, op.half}, begin, 0, kStoredPanel, weights.lines > 0 ? weights : rows);
        block.out += block.rows * kStoredPanel;
      }
    }
  }
}

// Marks those of `count` pairs of rows that are multiplied directly, and gives their number.
int64_t mark_pairs(const Strassen& op, const float* left, int64_t count, const float* right, bool* marks) noexcept {
  const float first = right[kMarked * op.factor];
  int64_t marked = 0;
  for (int64_t i = 0; i < count; ++i) {
    marks[i] = first != first || left[i * op.strides[op.lead + 1] + op.half] != 0;
    marked += marks[i];
  }
  return marked;
}

// The result's quarters of the marked pairs, c11, c12, c21 and c22, in place of their first four products.
void multiply_marked(const Strassen& op, const float* left, int64_t count, const float* right, const bool* marks,
                     float* products) noexcept {
  constexpr int kLeft[2][2] = {{kLeft11, kLeft12}, {kLeft21, kLeft22}},
                kRight[2][2] = {{kRight11, kRight12}, {kRight21, kRight22}};
  const int64_t row_stride = op.strides[op.lead + 1];
  for (int64_t pair = 0, rows; pair < count; pair += rows) {
    rows = 1;
    if (!marks[pair]) continue;
    while (rows < kBlockRows && pair + rows < count && marks[pair + rows]) ++rows;
    for (int quarter = 0; quarter < 4; ++quarter) {
      Block block;
      block.rows = static_cast<int>(rows);
      block.runs = 1;
      block.out = products + (quarter * count + pair) * kStoredPanel;
      block.out_stride = kStoredPanel;
      for (int i = 0; i < 2; ++i) {
        const float* const row = left + kLeft[quarter / 2][i] * op.strides[0] + pair * row_stride;
        const StoredPanels panels{right + kRight[i][quarter % 2] * op.factor, op.half};
        for (int64_t begin = 0; begin < op.half; begin += block.depth) {
          block.depth = std::min(kMostDepth, op.half - begin);
          block.accumulate = i > 0 || begin > 0;
          const float* pointers[kBlockRows];
          for (int64_t r = 0; r < rows; ++r) pointers[r] = row + r * row_stride + begin;
          block.pointers = pointers;
          Ahead nothing;
          multiply_panels(block, panels, begin, 0, kStoredPanel, nothing);
        }
      }
    }
  }
}

constexpr int kPairsAhead = 6;

// Brings two rows of a pair of panels into the L2 cache.
ASPEN_INLINE void fetch_rows(const float* from, int64_t stride) {
  for (int row = 0; row < 2; ++row) {
    for (int64_t c = 0; c < kColumns; c += kCacheLine / 4) __builtin_prefetch(from + row * stride + c, 0, 2);
  }
}

// The result's rows from the products of `count` pairs of rows, those from `first` on until `last`, each in registers taken
// through `finish` and stored to out.
void add_products(const float* products, const bool* marks, int64_t count, int64_t first, int64_t last, const Finish& finish,
                  float* out, int64_t out_stride) noexcept {
  constexpr int kVectors = kPanelVectors;
  const int64_t plane = count * kStoredPanel;
  const auto get = [](const float* from, int) __attribute__((always_inline)) { return load(from); };
  for (int64_t pair = first; pair < last; ++pair, out += 2 * out_stride) {
    // What is written, and read to finish it, mostly lies beyond the L2 cache, and no row near the one before it.
    const int64_t ahead = 2 * (pair - first + kPairsAhead);
    fetch_rows(out + 2 * kPairsAhead * out_stride, out_stride);
    for (const Finish::Step* step = finish.steps; step != finish.steps + finish.length; ++step) {
      if (step->row_stride != 0) fetch_rows(step->operand + ahead * step->row_stride, step->row_stride);
    }
    for (int64_t c = 0; c < kStoredPanel; c += kVectors * kLanes) {
      Floats left[2][kVectors], right[2][kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const float* const from = products + pair * kStoredPanel + c + v * kLanes;
        const auto p = [&](int product) __attribute__((always_inline)) { return load(from + product * plane); };
        if (marks[pair]) {
          left[0][v] = p(0);
          right[0][v] = p(1);
          left[1][v] = p(2);
          right[1][v] = p(3);
          continue;
        }
        const Floats u = p(0) + p(3), w = u + p(2), p4 = p(4);
        left[0][v] = p(0) + p(1);
        right[0][v] = w + p(5);
        left[1][v] = u + p4 + p(6);
        right[1][v] = w + p4;
      }
      finish_in_registers(finish, 0, 2 * (pair - first), c, left, get);
      finish_in_registers(finish, 0, 2 * (pair - first), kStoredPanel + c, right, get);
      for (int row = 0; row < 2; ++row) {
        float* const to = out + row * out_stride + c;
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          store(to + v * kLanes, left[row][v]);
          store(to + kStoredPanel + v * kLanes, right[row][v]);
        }
      }
    }
  }
}

// What becomes of the products of a tile's pairs of rows from `begin` on with a pair of panels.
struct Finishing {
  const Strassen& op;
  const TileArgs& args;
  const float* products;
  const bool* marks;  // of these pairs
  int64_t plane;      // pairs of rows of one of the seven products
  int64_t begin;
  int64_t column;  // of the pair of panels
  float* sums;
  std::byte* scratch;

  // Pairs [first, last) of them, where `at` is the place of the first but for row and column.
  void run(int64_t first, int64_t last, bool whole, int64_t* at) const {
    if (first >= last) return;
    const int row_axis = op.lead, column_axis = op.lead + 1;
    at[row_axis] = std::max<int64_t>(2 * (begin + first), args.lo[row_axis]);
    at[column_axis] = std::max<int64_t>(column, args.lo[column_axis]);
    const int64_t rows = std::min<int64_t>(2 * (begin + last), args.hi[row_axis]) - at[row_axis];
    const int64_t columns = std::min<int64_t>(column + kColumns, args.hi[column_axis]) - at[column_axis];
    Finish finish;
    if (whole) {
      op.epilogue.finish(args, at, row_axis, finish);
      if (finish.completes) {
        auto* const out = reinterpret_cast<float*>(op.epilogue.output_at(args, at));
        return add_products(products, marks, plane, first, last, finish, out, op.columns);
      }
      // The rest is worked out in the L1 cache: rows of the output may be so far apart that they share places in it.
      for (int64_t pair = first; pair < last; pair += kFinishedPairs) {
        const int64_t end = std::min(pair + kFinishedPairs, last);
        at[row_axis] = 2 * (begin + pair);
        Finish piece;
        op.epilogue.finish(args, at, row_axis, piece);
        add_products(products, marks, plane, pair, end, piece, sums, kColumns);
        op.epilogue.complete(args, at, row_axis, 2 * (end - pair), columns, sums, kColumns, scratch);
      }
      return;
    }
    add_products(products, marks, plane, first, last, finish, sums, kColumns);
    const float* const from = sums + (at[row_axis] - 2 * (begin + first)) * kColumns + at[column_axis] - column;
    op.epilogue.apply(args, at, row_axis, rows, columns, from, kColumns, scratch);
  }
};

const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Strassen*>(args.state);
  const int row_axis = op.lead, column_axis = op.lead + 1;
  for (int d = 0; d <= column_axis; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
  }
  const int64_t first_pair = args.lo[row_axis] / 2, last_pair = ceil_div(args.hi[row_axis], 2);
  const int64_t bands = ceil_div(last_pair - first_pair, kMostPairs);
  const int64_t band = ceil_div(last_pair - first_pair, bands);
  // Short matrices whose left factors follow each other, as the lines of an image, are multiplied together.
  const bool joins = op.lead > 0 && op.lines_adjacent && args.lo[row_axis] == 0 && args.hi[row_axis] == op.rows;
  const int64_t all_lines = joins ? args.hi[op.lead - 1] - args.lo[op.lead - 1] : 1;
  const int64_t parts = ceil_div(all_lines, std::max<int64_t>(kMostPairs / band, 1));
  const int64_t most_lines = ceil_div(all_lines, parts);
  auto* const products = reinterpret_cast<float*>(args.scratch);
  float* const sums = products + product_floats(kMostPairs);
  std::byte* const epilogue_scratch = reinterpret_cast<std::byte*>(sums + 2 * kMostPairs * kColumns);
  int64_t at[kMaxRank];
  std::copy_n(args.lo, row_axis, at);
  for (;;) {
    const float* left = static_cast<const float*>(args.inputs[0]);
    for (int d = 0; d < op.lead; ++d) left += at[d] * op.strides[d + 1];
    const int64_t lines = joins ? std::min(most_lines, args.hi[op.lead - 1] - at[op.lead - 1]) : 1;
    for (int64_t panels = args.lo[column_axis] / kColumns; panels * kColumns < args.hi[column_axis]; ++panels) {
      const float* const right = static_cast<const float*>(args.inputs[1]) + panels * op.panel;
      const int64_t column = panels * kColumns;
      for (int64_t pair = first_pair; pair < last_pair; pair += band) {
        const int64_t count = std::min(band, last_pair - pair);
        const float* const next = pair + count < last_pair ? right : panels + 1 < op.pairs ? right + op.panel : nullptr;
        // Pairs of which the tile has both rows, and all columns, need not be stored in between.
        const bool whole =
            op.epilogue.begins_in_registers() && column >= args.lo[column_axis] && column + kColumns <= args.hi[column_axis];
        const float* const pairs = left + pair * op.strides[op.lead + 1];
        bool marks[kMostPairs];  // as many as there may be
        const int64_t marked = mark_pairs(op, pairs, lines * count, right, marks);
        if (marked < lines * count) multiply_pairs(op, pairs, lines * count, right, next, products);
        if (marked > 0) multiply_marked(op, pairs, lines * count, right, marks, products);
        const int64_t begin = whole ? (2 * pair < args.lo[row_axis] ? 1 : 0) : count;
        const int64_t end = whole && 2 * (pair + count) > args.hi[row_axis] ? count - 1 : count;
        for (int64_t line = 0; line < lines; ++line) {
          int64_t place[kMaxRank];
          std::copy_n(at, op.lead, place);
          if (line > 0) place[op.lead - 1] += line;
          const float* const of_line = products + line * count * kStoredPanel;
          const Finishing finishing{op, args, of_line, marks + line * count, lines * count, pair, column, sums, epilogue_scratch};
          finishing.run(0, begin, false, place);
          finishing.run(begin, end, true, place);
          finishing.run(std::max(begin, end), count, false, place);
        }
      }
    }
    int d = op.lead - 1;
    for (int64_t step = lines; d >= 0; --d, step = 1) {
      if ((at[d] += step) < args.hi[d]) break;
      at[d] = args.lo[d];
    }
    if (d < 0) return nullptr;
  }
}

}  // namespace

PreparedOp prepare_strassen_rows(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& a = reader.input(0, "a", {.rank = {2, kMaxRank - 1}, .dtypes = DType::kF32, .adjacent = true});
  reader.end_inputs(1);
  const TensorView& out = reader.output({.rank = a.rank + 1, .dtypes = DType::kF32, .dense = true});
  const int64_t padding = reader.integer(1, kMaxExtent, "the padding");
  reader.end_without_program();
  const int lead = a.rank - 2;
  const int64_t rows = a.shape[lead], inner = a.shape[lead + 1];
  if (inner % 2 != 0) throw GraphError("a has shape " + describe(a) + ", where an even number of columns is needed");
  check_extent(out, "the output", 0, kFactors);
  for (int d = 0; d < lead; ++d) check_extent(out, "the output", d + 1, a.shape[d]);
  check_extent(out, "the output", lead + 1, ceil_div(rows, 2));
  check_extent(out, "the output", lead + 2, inner / 2 + padding);
  auto op = std::make_unique<Rows>();
  op->lead = lead;
  op->rows = rows;
  op->half = inner / 2;
  for (int d = 0; d < a.rank; ++d) op->strides[d] = used_stride(a, d);
  for (int d = 0; d < out.rank; ++d) op->out_strides[d] = used_stride(out, d);
  PreparedOp prepared;
  prepared.run = run_rows;
  prepared.scratch_bytes = static_cast<size_t>(round_up(inner * 4, 64));
  prepared.state = std::move(op);
  return prepared;
}

PreparedOp prepare_strassen(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& out = reader.output({.rank = {2, kMaxRank - 1}, .dense = true});
  const TensorView& left = reader.input(0, "the left factors", {.rank = out.rank + 1, .dtypes = DType::kF32, .adjacent = true});
  const TensorView& right = reader.input(1, "the right factors", {.rank = 4, .dtypes = DType::kF32, .adjacent = true});
  const int lead = out.rank - 2;
  check_extent(out, "the output", lead, reader.integer(0, kMaxExtent, "the number of rows"));
  check_extent(out, "the output", lead + 1, reader.integer(0, kMaxExtent, "the number of columns"));
  const int64_t half = right.shape[2];
  check_range(half, 1, kMaxExtent - 1, "half of the inner dimension");
  check_shape(right, "the right factors", {kFactors, ceil_div(out.shape[lead + 1], kColumns), half, kStoredPanel});
  check_extent(left, "the left factors", 0, kFactors);
  for (int d = 0; d < lead; ++d) check_extent(left, "the left factors", d + 1, out.shape[d]);
  check_extent(left, "the left factors", lead + 1, ceil_div(out.shape[lead], 2));
  check_range(left.shape[lead + 2], half + 1, kMaxExtent, "the inner extent of the left factors");
  if (half > 1 && !is_empty(right) && right.strides[2] != kStoredPanel) {
    throw GraphError("the rows of the right factors' panels do not follow each other; copy them first");
  }
  auto op = std::make_unique<Strassen>();
  op->lead = lead;
  op->half = half;
  op->rows = out.shape[lead];
  op->pairs = right.shape[1];
  op->columns = out.shape[lead + 1];
  for (int d = 0; d <= lead + 1; ++d) op->strides[d] = used_stride(left, d);
  op->lines_adjacent = lead > 0 && op->strides[lead] == left.shape[lead + 1] * op->strides[lead + 1];
  op->factor = used_stride(right, 0);
  op->panel = used_stride(right, 1);
  op->epilogue = Epilogue::parse(reader, 2, DType::kF32);
  PreparedOp prepared;
  prepared.run = run;
  prepared.scratch_bytes =
      static_cast<size_t>(product_floats(kMostPairs) + 2 * kMostPairs * kColumns) * 4 + op->epilogue.scratch_bytes();
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace aspen::cpu::ASPEN_TARGET
