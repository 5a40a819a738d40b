// The tile function of CUDA's products, run on the host: every shape, against double, with inputs that end where memory may not
// be read.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "cuda/kernels/operands.h"
#include "cuda/kernels/product.h"
#include "cuda/kernels/streamed_product.h"
#include "cuda/kernels/tensor_copy.h"
#include "cuda/kernels/warpgroup_mma.h"
#include "engine_check.h"
#include "half.h"

namespace aspen::testing {
namespace {

using namespace aspen::cuda;  // NOLINT: this is about nothing else

constexpr int kTrials = ASPEN_SMALL_TESTS ? 3 : 25;

std::mt19937 random_bits(1);

int random_int(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random_bits); }

// Elements as a kind of product stores them, and what it multiplies.
template <class Kind>
struct Numbers;
template <>
struct Numbers<Tf32> {
  static float stored(double value) { return static_cast<float>(value); }
  // 11 significant bits, halves away from zero.
  static double multiplied(float stored) {
    int exponent = 0;
    const double fraction = std::frexp(static_cast<double>(stored), &exponent);
    return std::ldexp(std::round(std::ldexp(fraction, 11)), exponent - 11);
  }
};
template <>
struct Numbers<RoundedTf32> {
  static float stored(double value) { return static_cast<float>(Numbers<Tf32>::multiplied(static_cast<float>(value))); }
  static double multiplied(float stored) { return stored; }
};
template <DType dtype>
struct HalfNumbers {
  static uint16_t stored(double value) { return cpu::testing::half_bits(dtype, value); }
  static double multiplied(uint16_t stored) { return cpu::testing::half_value(dtype, stored); }
};
template <>
struct Numbers<Bf16> : HalfNumbers<DType::kBF16> {};
template <>
struct Numbers<F16> : HalfNumbers<DType::kF16> {};
struct Exact {};
template <>
struct Numbers<Exact> {
  static float stored(double value) { return static_cast<float>(value); }
  static double multiplied(float stored) { return stored; }
};

// Exactly so many random elements, on the heap, which aligns them to 16 bytes: AddressSanitizer sees what lies outside.
template <class Kind, class Element>
std::unique_ptr<Element[]> random_elements(int64_t count) {
  auto elements = std::make_unique<Element[]>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    elements[i] = Numbers<Kind>::stored(std::uniform_real_distribution<double>(-1, 1)(random_bits));
  return elements;
}

// What rows are: of columns that are rounded beforehand they are not.
template <class Kind>
using RowKind = typename Either<std::is_same_v<Kind, RoundedTf32>, Tf32, Kind>::Type;

template <class Memory>
std::unique_ptr<Memory> poisoned_memory() {
  auto memory = std::make_unique<Memory>();
  std::memset(static_cast<void*>(memory.get()), 0xff, sizeof *memory);
  return memory;
}

// Runs a tile and checks each sum against `expected(row, column)`, and that each element is stored once and none outside.
template <class Core, int kStages, class Memory, int kRun, class Rows, class Columns, class Expected>
void check_runs(const Rows& rows, const Columns& columns, int num_rows, int num_columns, int depth, const Expected& expected) {
  const float untouched = 1e30f;
  std::vector<float> out(static_cast<size_t>(num_rows * num_columns), untouched);
  const auto memory = poisoned_memory<Memory>();
  multiply_tile<kRun>(
      *memory, rows, columns, num_rows, num_columns, depth, [&](int row, int column, const float* sums, int count) {
        CHECK(row < num_rows && column % kRun == 0 && count >= 1 && count <= kRun && column + count <= num_columns);
        for (int i = 0; i < count; ++i) {
          float& to = out[static_cast<size_t>(row * num_columns + column + i)];
          CHECK_EQ(to, untouched);
          to = sums[i];
        }
      });
  for (int row = 0; row < num_rows; ++row) {
    for (int column = 0; column < num_columns; ++column) {
      const double want = expected(row, column);
      const double got = out[static_cast<size_t>(row * num_columns + column)];
      // Sums of products of numbers below 1 in float32, in any order.
      CHECK(std::abs(got - want) <= 1e-7 * depth + 1e-6);
    }
  }
}
template <class Core, int kStages, class Memory = ProductMemory<Core, kStages>, class Rows, class Columns, class Expected>
void check_tile(const Rows& rows, const Columns& columns, int num_rows, int num_columns, int depth, const Expected& expected) {
  check_runs<Core, kStages, Memory, 1>(rows, columns, num_rows, num_columns, depth, expected);
  check_runs<Core, kStages, Memory, 8>(rows, columns, num_rows, num_columns, depth, expected);
}

// Columns that lie across the depth or along it, as the Core has them.
template <class Kind, class Core, int kStages, int kVector>
void check_matrices() {
  using Element = typename Core::Element;
  for (int trial = 0; trial < kTrials; ++trial) {
    const int num_rows = trial == 0 ? Core::kRows : random_int(1, Core::kRows);
    const int num_columns = trial == 0 ? Core::kColumns : random_int(1, Core::kColumns / kVector) * kVector;
    const int depth = random_int(0, 6 * Core::kDepth / kVector) * kVector;
    const int row_stride = depth + kVector * random_int(0, 2);
    const int lines = Core::kAlongDepth ? num_columns : depth, line = Core::kAlongDepth ? depth : num_columns;
    const int line_stride = line + kVector * random_int(0, 2);
    const auto a = random_elements<RowKind<Kind>, Element>(std::max(1, (num_rows - 1) * row_stride + depth));
    const auto b = random_elements<Kind, Element>(std::max(1, (lines - 1) * line_stride + line));
    const auto expected = [&](int row, int column) {
      double sum = 0;
      for (int k = 0; k < depth; ++k) {
        sum += Numbers<RowKind<Kind>>::multiplied(a[row * row_stride + k]) *
               Numbers<Kind>::multiplied(b[Core::kAlongDepth ? column * line_stride + k : k * line_stride + column]);
      }
      return sum;
    };
    const MatrixRows<Element, kVector> rows{a.get(), row_stride, depth};
    if constexpr (Core::kAlongDepth) {
      check_tile<Core, kStages>(rows, MatrixRows<Element, kVector>{b.get(), line_stride, depth}, num_rows, num_columns, depth,
                                expected);
    } else {
      check_tile<Core, kStages>(rows, MatrixColumns<Element, kVector>{b.get(), line_stride, depth}, num_rows, num_columns, depth,
                                expected);
    }
  }
}

TEST(matrices_on_tensor_cores) {
  check_matrices<Tf32, MmaCore<Tf32, 128, 64, 32, 32>, 3, 4>();
  check_matrices<Tf32, MmaCore<Tf32, 64, 64, 32, 32>, 4, 1>();
  check_matrices<Bf16, MmaCore<Bf16, 128, 128, 64, 32>, 3, 8>();
  check_matrices<Bf16, MmaCore<Bf16, 64, 32, 32, 16>, 2, 2>();
  check_matrices<F16, MmaCore<F16, 64, 64, 32, 32>, 3, 8>();
  check_matrices<F16, MmaCore<F16, 32, 64, 16, 16>, 5, 4>();
  check_matrices<Tf32, MmaCore<Tf32, 64, 64, 32, 32, true>, 3, 4>();
  check_matrices<F16, MmaCore<F16, 64, 64, 32, 32, true>, 3, 8>();
}

TEST(matrices_by_warpgroups) {
  check_matrices<Bf16, WgmmaCore<Bf16, 64, 64>, 4, 8>();
  check_matrices<F16, WgmmaCore<F16, 64, 128>, 3, 8>();
  check_matrices<Bf16, WgmmaCore<Bf16, 128, 128>, 3, 2>();
  check_matrices<F16, WgmmaCore<F16, 128, 64, true>, 5, 8>();
  check_matrices<Bf16, WgmmaCore<Bf16, 64, 128, true>, 4, 1>();
  check_matrices<RoundedTf32, WgmmaCore<RoundedTf32, 64, 64, true>, 3, 4>();
  check_matrices<RoundedTf32, WgmmaCore<RoundedTf32, 128, 128, true>, 4, 4>();
  check_matrices<RoundedTf32, MmaCore<RoundedTf32, 64, 64, 32, 32, true>, 3, 4>();
}

// One dimension of a tensor of three: `count` elements that are `stride` apart.
struct Axis {
  int count, stride;
};
TensorMap map_of(const void* data, int adjacent, Axis lines, Axis matrices, int box_lines, int size = 2) {
  const auto unsigned_of = [](int number) { return static_cast<uint64_t>(number); };
  TensorShape shape{0, 3, {}, {}, {64, static_cast<uint32_t>(box_lines), 1}, {1, 1, 1}};
  shape.extents[0] = unsigned_of(adjacent * size / 2), shape.extents[1] = unsigned_of(lines.count);
  shape.extents[2] = unsigned_of(matrices.count);
  shape.strides[0] = unsigned_of(size * lines.stride), shape.strides[1] = unsigned_of(size * matrices.stride);
  return played_map(shape, data);
}

// A tile anywhere in one of a few matrices, whose last lines are followed by memory that may not be read.
template <class Kind, class Core, int kStages>
void check_boxes() {
  using Element = typename Core::Element;
  for (int trial = 0; trial < kTrials; ++trial) {
    const int height = random_int(1, 300), width = 8 * random_int(1, 40), depth = 8 * random_int(1, 40);
    const int matrix = random_int(0, 2), first_row = random_int(0, height - 1), first_column = random_int(0, width - 1);
    const Axis a_lines{height, depth + 8 * random_int(0, 2)};
    const Axis b_lines{Core::kAlongDepth ? width : depth, (Core::kAlongDepth ? depth : width) + 8 * random_int(0, 2)};
    const Axis a_matrices{3, height * a_lines.stride}, b_matrices{3, b_lines.count * b_lines.stride};
    const int b_adjacent = Core::kAlongDepth ? depth : width;
    const auto size = [](Axis matrices, Axis lines, int adjacent) {
      return 2 * matrices.stride + (lines.count - 1) * lines.stride + adjacent;
    };
    const auto a = random_elements<RowKind<Kind>, Element>(size(a_matrices, a_lines, depth));
    const auto b = random_elements<Kind, Element>(size(b_matrices, b_lines, b_adjacent));
    constexpr int kSize = sizeof(Element);
    const TensorMap a_map = map_of(a.get(), depth, a_lines, a_matrices, Core::kRows, kSize);
    const int box_lines = Core::kAlongDepth ? Core::kColumns : 64;
    const TensorMap b_map = map_of(b.get(), b_adjacent, b_lines, b_matrices, box_lines, kSize);
    const int num_rows = std::min(height - first_row, Core::kRows), num_columns = std::min(width - first_column, Core::kColumns);
    const auto expected = [&](int row, int column) {
      double sum = 0;
      for (int k = 0; k < depth; ++k) {
        const int line = Core::kAlongDepth ? first_column + column : k, at = Core::kAlongDepth ? k : first_column + column;
        sum += Numbers<RowKind<Kind>>::multiplied(a[matrix * a_matrices.stride + (first_row + row) * a_lines.stride + k]) *
               Numbers<Kind>::multiplied(b[matrix * b_matrices.stride + line * b_lines.stride + at]);
      }
      return sum;
    };
    const MatrixBoxes<3, 0> rows{{&a_map, {0, first_row, matrix}}};
    if constexpr (Core::kAlongDepth) {
      const MatrixBoxes<3, 0> columns{{&b_map, {0, first_column, matrix}}};
      check_tile<Core, kStages, TensorMemory<Core, kStages>>(rows, columns, num_rows, num_columns, depth, expected);
    } else {
      const MatrixBoxes<3, 1> columns{{&b_map, {first_column, 0, matrix}}};
      check_tile<Core, kStages, TensorMemory<Core, kStages>>(rows, columns, num_rows, num_columns, depth, expected);
    }
  }
}

TEST(matrices_in_boxes) {
  check_boxes<Bf16, WgmmaCore<Bf16, 64, 64>, 4>();
  check_boxes<F16, WgmmaCore<F16, 64, 128>, 3>();
  check_boxes<Bf16, WgmmaCore<Bf16, 128, 128, true>, 4>();
  check_boxes<F16, WgmmaCore<F16, 128, 64, true>, 5>();
  check_boxes<RoundedTf32, WgmmaCore<RoundedTf32, 64, 64, true>, 4>();
  check_boxes<RoundedTf32, WgmmaCore<RoundedTf32, 128, 128, true>, 3>();
}

// Blocks of a box of one of a few matrices, row by row: what `multiply_blocks` walks.
template <class Core, int kRun>
struct PlainBlocks {
  using Columns = MatrixBoxes<3, Core::kAlongDepth ? 0 : 1>;
  const TensorMap *a, *b;
  std::vector<float>* out;
  int last_row, first_column, last_column, matrix, whole_depth;
  int row, column;  // of the block

  MatrixBoxes<3, 0> rows() const { return {{a, {0, row, matrix}}}; }
  Columns columns() const {
    if constexpr (Core::kAlongDepth) {
      return {{b, {0, column, matrix}}};
    } else {
      return {{b, {column, 0, matrix}}};
    }
  }
  int num_rows() const { return std::min(last_row - row, Core::kRows); }
  int num_columns() const { return std::min(last_column - column, Core::kColumns); }
  int depth() const { return whole_depth; }
  bool advance() {
    column += Core::kColumns;
    if (column < last_column) return true;
    column = first_column;
    row += Core::kRows;
    return row < last_row;
  }
  void store(int own_row, int own_column, const float* sums, int count) const {
    CHECK(own_row < num_rows() && own_column % kRun == 0 && count >= 1 && count <= kRun && own_column + count <= num_columns());
    for (int i = 0; i < count; ++i) {
      float& to = (*out)[static_cast<size_t>((row + own_row) * last_column + column + own_column + i)];
      CHECK(std::isnan(to));  // stored once
      to = sums[i];
    }
  }
};

// Several blocks, one after the other, with a warp beside that copies: every sum of the box, and none outside.
template <class Kind, class Core, int kStages, int kRun>
void check_streamed() {
  using Element = typename Core::Element;
  for (int trial = 0; trial < std::max(2, kTrials / 4); ++trial) {
    // First six blocks of one chunk, which are more than there are stages.
    const bool whole = trial == 0;
    const int height = whole ? 3 * Core::kRows : random_int(1, 3 * Core::kRows);
    const int width = whole ? 2 * Core::kColumns : 8 * random_int(1, 2 * Core::kColumns / 8);
    const int depth = whole ? 8 : 8 * random_int(1, 60);
    const Axis a_lines{height, depth}, b_lines{Core::kAlongDepth ? width : depth, Core::kAlongDepth ? depth : width};
    const auto a = random_elements<RowKind<Kind>, Element>(2 * height * depth);
    const auto b = random_elements<Kind, Element>(2 * width * depth);
    const TensorMap a_map = map_of(a.get(), depth, a_lines, {2, height * depth}, Core::kRows, sizeof(Element));
    const TensorMap b_map =
        map_of(b.get(), b_lines.stride, b_lines, {2, width * depth}, Core::kAlongDepth ? Core::kColumns : 64, sizeof(Element));
    std::vector<float> out(static_cast<size_t>(height * width), NAN);
    const int matrix = random_int(0, 1), first_row = whole ? 0 : random_int(0, height - 1);
    const int first_column = whole ? 0 : 8 * random_int(0, width / 8 - 1);
    const PlainBlocks<Core, kRun> blocks{&a_map, &b_map, &out,  height,    first_column,
                                         width,  matrix, depth, first_row, first_column};
    const auto memory = poisoned_memory<StreamMemory<Core, kStages>>();
    multiply_blocks<kRun, 1>(*memory, blocks);
    for (int row = 0; row < height; ++row) {
      for (int column = 0; column < width; ++column) {
        const float got = out[static_cast<size_t>(row * width + column)];
        if (row < first_row || column < first_column) {
          CHECK(std::isnan(got));
          continue;
        }
        double want = 0;
        for (int k = 0; k < depth; ++k) {
          const int place = Core::kAlongDepth ? column * depth + k : k * width + column;
          want += Numbers<RowKind<Kind>>::multiplied(a[(matrix * height + row) * depth + k]) *
                  Numbers<Kind>::multiplied(b[matrix * width * depth + place]);
        }
        CHECK(std::abs(got - want) <= 1e-7 * depth + 1e-6);
      }
    }
  }
}

TEST(streamed_blocks) {
  check_streamed<Bf16, StreamedCore<Bf16, 128, 256, false, 4>, 4, 8>();
  check_streamed<F16, StreamedCore<F16, 128, 64, true, 3>, 3, 1>();
  check_streamed<Bf16, StreamedCore<Bf16, 64, 128, false, 2>, 2, 4>();
  check_streamed<RoundedTf32, StreamedCore<RoundedTf32, 64, 64, true, 2>, 2, 8>();
  check_streamed<RoundedTf32, StreamedCore<RoundedTf32, 128, 256, true, 3>, 3, 4>();
}

TEST(a_box_arrives_when_its_barrier_has_been_waited_for) {
  struct alignas(1024) Memory {
    uint16_t lines[2][8 * 64];
    Barrier barriers[2];
  };
  const auto memory = std::make_unique<Memory>();
  const auto from = random_elements<Bf16, uint16_t>(20 * 64);
  const TensorMap map = map_of(from.get(), 64, {20, 64}, {1, 20 * 64}, 8);
  Block<32> block;
  BoxCopies<32, 2> copies(block, memory->barriers);
  for (int line = 0; line < 3; ++line) {  // each barrier's phases 0 and 1, and 0 again
    for (const int barrier : {0, 1}) {
      copies.expect(barrier, 8 * 128);
      copies.copy(block, memory->lines[barrier], TensorBox<3>{&map, {0, 8 * line, 0}}, barrier);
    }
    CHECK_EQ(memory->lines[1][64], 0xffff);
    copies.wait(0, line % 2);
    CHECK_EQ(memory->lines[0][64 + 8], from[(8 * line + 1) * 64]);  // unit 0 of line 1 is at unit 1
    CHECK_EQ(memory->lines[1][64], 0xffff);
    copies.wait(1, line % 2);
    CHECK_EQ(memory->lines[1][4 * 64], line == 2 ? 0 : from[(8 * line + 4) * 64 + 4 * 8]);  // line 20 is outside
  }
  copies.end(block);
}

TEST(a_box_of_steps_ends_in_zeros_on_every_side) {
  struct alignas(1024) Memory {
    uint16_t lines[8 * 64];
    Barrier barriers[1];
  };
  // Two images of 3 x 5 pixels of 40 channels; boxes of 4 x 2 pixels, every second and third.
  const auto from = random_elements<Bf16, uint16_t>(2 * 3 * 5 * 40);
  const TensorShape shape{0, 4, {40, 5, 3, 2}, {80, 400, 1200}, {64, 8, 6, 1}, {1, 2, 3, 1}};
  const TensorMap map = played_map(shape, from.get());
  for (int trial = 0; trial < 100; ++trial) {
    const int channel = 8 * random_int(-8, 5), x = random_int(-9, 6), y = random_int(-5, 4), image = random_int(-1, 2);
    const auto memory = std::make_unique<Memory>();
    Block<32> block;
    BoxCopies<32, 1> copies(block, memory->barriers);
    copies.expect(0, 8 * 128);
    copies.copy(block, memory->lines, TensorBox<4>{&map, {channel, x, y, image}}, 0);
    copies.wait(0, 0);
    for (int line = 0; line < 8; ++line) {
      for (int i = 0; i < 64; ++i) {
        const int c = channel + i, own_x = x + line % 4 * 2, own_y = y + line / 4 * 3;
        const bool inside = c >= 0 && c < 40 && own_x >= 0 && own_x < 5 && own_y >= 0 && own_y < 3 && image >= 0 && image < 2;
        CHECK_EQ(memory->lines[Swizzle::place(line, i)], inside ? from[((image * 3 + own_y) * 5 + own_x) * 40 + c] : 0);
      }
    }
    copies.end(block);
  }
}

TEST(maps_are_held_to_the_manual) {
  const auto from = random_elements<Bf16, uint16_t>(2 * 3 * 5 * 40);
  const TensorShape right{0, 4, {40, 5, 3, 2}, {80, 400, 1200}, {64, 256, 6, 1}, {1, 8, 3, 1}};
  CHECK(is_allowed(right, from.get()));
  const auto refused = [&](const auto& change) {
    TensorShape wrong = right;
    change(wrong);
    return !is_allowed(wrong, from.get());
  };
  CHECK(refused([](TensorShape& shape) { shape.box[1] = 257; }));
  CHECK(refused([](TensorShape& shape) { shape.box[3] = 0; }));
  CHECK(refused([](TensorShape& shape) { shape.box[0] = 72; }));
  CHECK(refused([](TensorShape& shape) { shape.steps[1] = 9; }));
  CHECK(refused([](TensorShape& shape) { shape.steps[3] = 0; }));
  CHECK(refused([](TensorShape& shape) { shape.strides[2] = 1208; }));
  CHECK(refused([](TensorShape& shape) { shape.extents[2] = 0; }));
  CHECK(refused([](TensorShape& shape) { shape.rank = 6; }));
  CHECK(!is_allowed(right, from.get() + 4));
}

// The bits of a descriptor, and where an element is, from the tables of the PTX manual: the 8 lines of a pattern are 128 bytes
// apart, and units of 16 bytes change places by the lowest three bits of the line's number.
TEST(matrix_descriptors) {
  struct alignas(1024) Memory {
    uint16_t elements[128 * 64];
  };
  const auto memory = std::make_unique<Memory>();
  for (int i = 0; i < 128 * 64; ++i) memory->elements[i] = static_cast<uint16_t>(i);
  const auto descriptor = MatrixDescriptor::of(memory.get(), 8192, 1024);
  const auto address = reinterpret_cast<uintptr_t>(memory.get()) & 0x3ffff;
  CHECK_EQ(descriptor.bits, address / 16 | uint64_t{512} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62);
  CHECK_EQ(descriptor.at<false>(0, 9), 9);
  CHECK_EQ(descriptor.at<false>(1, 9), 64 + 1);                    // unit 1 of line 1 is at unit 0
  CHECK_EQ((descriptor + 32).at<false>(13, 0), 13 * 64 + 7 * 8);   // unit 2 of line 5 of the second pattern, at unit 7
  CHECK_EQ(descriptor.at<true>(17, 3), 3 * 64 + 8 + 1);            // unit 2 of line 3, at unit 1
  CHECK_EQ(descriptor.at<true>(64 + 63, 15), 4096 + 15 * 64 + 7);  // unit 7 of line 7 of the second pattern, at unit 0
}

TEST(matrices_in_float32) {
  check_matrices<Exact, FmaCore<128, 64>, 3, 4>();
  check_matrices<Exact, FmaCore<64, 64>, 2, 1>();
}

template <class Kind, class Core, int kStages, int kVector>
void check_convolutions() {
  using Element = typename Core::Element;
  for (int trial = 0; trial < kTrials; ++trial) {
    const int batch = random_int(1, 2), height = random_int(1, 12), width = random_int(1, 12);
    const int channels = random_int(1, 5) * kVector, outputs = random_int(1, Core::kColumns / kVector) * kVector;
    const int kernel_height = random_int(1, 4), kernel_width = random_int(1, 4);
    ConvRows<Element, kVector> rows{};
    rows.channels = channels, rows.height = height, rows.width = width, rows.kernel_width = kernel_width;
    rows.x_stride = channels, rows.y_stride = width * channels, rows.batch_stride = height * rows.y_stride;
    rows.depth = kernel_height * kernel_width * channels;
    rows.y_step = random_int(1, 3), rows.x_step = random_int(1, 3);
    rows.y_dilation = random_int(1, 2), rows.x_dilation = random_int(1, 3);
    rows.top = random_int(-1, 3), rows.left = random_int(-1, 3);  // negative padding crops
    // Any box of an output that is as large as it likes: beyond the image there is padding.
    rows.tile_height = random_int(1, 8), rows.tile_width = random_int(1, 8);
    rows.first_y = random_int(0, 6), rows.first_x = random_int(0, 6), rows.first_image = random_int(0, batch - 1);
    const int images = rows.tile_height * rows.tile_width * 2 <= Core::kRows ? batch - rows.first_image : 1;
    const auto x = random_elements<Kind, Element>(batch * rows.batch_stride);
    const auto w = random_elements<Kind, Element>(int64_t{rows.depth} * outputs);
    rows.data = x.get();
    const int num_rows = images * rows.tile_height * rows.tile_width;
    const auto expected = [&](int row, int column) {
      const int ox = rows.first_x + row % rows.tile_width, oy = rows.first_y + row / rows.tile_width % rows.tile_height;
      const int image = rows.first_image + row / (rows.tile_width * rows.tile_height);
      double sum = 0;
      for (int kh = 0; kh < kernel_height; ++kh) {
        for (int kw = 0; kw < kernel_width; ++kw) {
          const int iy = oy * rows.y_step - rows.top + kh * rows.y_dilation;
          const int ix = ox * rows.x_step - rows.left + kw * rows.x_dilation;
          if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
          for (int c = 0; c < channels; ++c) {
            sum += Numbers<Kind>::multiplied(x[((image * height + iy) * width + ix) * channels + c]) *
                   Numbers<Kind>::multiplied(w[((kh * kernel_width + kw) * channels + c) * outputs + column]);
          }
        }
      }
      return sum;
    };
    check_tile<Core, kStages>(rows, MatrixColumns<Element, kVector>{w.get(), outputs, rows.depth}, num_rows, outputs, rows.depth,
                              expected);
  }
}

TEST(convolutions) {
  check_convolutions<Tf32, MmaCore<Tf32, 128, 64, 32, 32>, 3, 4>();
  check_convolutions<Exact, FmaCore<64, 64>, 3, 1>();
  check_convolutions<Bf16, MmaCore<Bf16, 64, 64, 32, 32>, 3, 8>();
  check_convolutions<F16, MmaCore<F16, 128, 64, 32, 32>, 4, 2>();
  check_convolutions<Bf16, WgmmaCore<Bf16, 64, 64>, 4, 8>();
  check_convolutions<F16, WgmmaCore<F16, 128, 128>, 3, 4>();
}

// A device that gives what has not been waited for would go unnoticed; the host does not.
TEST(a_copy_arrives_when_it_has_been_waited_for) {
  Block<32> block;
  alignas(16) float from[4] = {1, 2, 3, 4}, to[4] = {};
  block.copy_async<16>(to, from, true);
  block.commit();
  block.copy_async<4>(to, from + 2, true);
  block.commit();
  block.wait<1>();
  CHECK_EQ(to[0], 1.0f);
  block.wait<0>();
  CHECK_EQ(to[0], 3.0f);
  block.copy_async<8>(to, from, false);
  block.commit();
  block.wait<0>();
  CHECK_EQ(to[0], 0.0f);
  CHECK_EQ(to[2], 3.0f);
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
