// winograd: a 3x3 convolution of stride 1 as Winograd's minimal filtering F(4x4, 3x3) or F(2x2, 3x3) (Lavin and Gray, "Fast
// algorithms for convolutional neural networks", 2015): a patch of 4x4 outputs takes 36 products a channel where the direct way
// takes 144, one of 2x2 takes 16 where it takes 36.
//
// winograd_weights turns w [3,3,C,O] into [points, ceil(O/32), C, 32]: one matrix for each of the 36 or 16 elements (points) of a
// transformed patch, in panels of 32 columns. winograd takes x [N,H,W,C] and those. For the patches of its tile it transforms all
// channels of the input into scratch, multiplies a panel at a time, and transforms the sums back, a line of patches at a time,
// for the epilogue.
#include <algorithm>
#include <memory>
#include <string>

#include "aspen_jax/engine/words.h"
#include "epilogue.h"
#include "gemm.h"
#include "shapes.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_winograd(const OpSpec& spec);
PreparedOp prepare_winograd_weights(const OpSpec& spec);

namespace {

constexpr int64_t kColumns = 32;  // of a panel of weights; part of the graph format
// Transformed patches that are multiplied together: enough to read the weights seldom, and few enough to leave an L2 cache room
// for a matrix of weights and its sums.
constexpr int64_t kMostPatchFloats = 160 * 1024;

// The transforms along one axis.
template <int kOutputs>
struct Filter;

// With the points 0, 1, -1 and infinity.
template <>
struct Filter<2> {
  static constexpr int kTile = 2;   // outputs of a patch along each axis
  static constexpr int kPatch = 4;  // inputs

  static ASPEN_INLINE void input(const Floats (&d)[kPatch], Floats (&to)[kPatch]) {
    to[0] = d[0] - d[2];
    to[1] = d[1] + d[2];
    to[2] = d[2] - d[1];
    to[3] = d[1] - d[3];
  }
  static ASPEN_INLINE void weights(const Floats (&g)[3], Floats (&to)[kPatch]) {
    const Floats even = g[0] + g[2];
    to[0] = g[0];
    to[1] = 0.5f * (even + g[1]);
    to[2] = 0.5f * (even - g[1]);
    to[3] = g[2];
  }
  static ASPEN_INLINE void output(const Floats (&m)[kPatch], Floats (&to)[kTile]) {
    to[0] = m[0] + m[1] + m[2];
    to[1] = m[1] - m[2] - m[3];
  }
};

// With the points 0, 1, -1, 2, -2 and infinity.
template <>
struct Filter<4> {
  static constexpr int kTile = 4;
  static constexpr int kPatch = 6;

  static ASPEN_INLINE void input(const Floats (&d)[kPatch], Floats (&to)[kPatch]) {
    const Floats a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1];
    const Floats c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
    to[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    to[1] = a + b;
    to[2] = a - b;
    to[3] = c + e;
    to[4] = c - e;
    to[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
  }
  static ASPEN_INLINE void weights(const Floats (&g)[3], Floats (&to)[kPatch]) {
    const Floats even = g[0] + g[2], wide = (1.0f / 24) * g[0] + (1.0f / 6) * g[2], middle = (1.0f / 12) * g[1];
    to[0] = 0.25f * g[0];
    to[1] = (-1.0f / 6) * (even + g[1]);
    to[2] = (-1.0f / 6) * (even - g[1]);
    to[3] = wide + middle;
    to[4] = wide - middle;
    to[5] = g[2];
  }
  static ASPEN_INLINE void output(const Floats (&m)[kPatch], Floats (&to)[kTile]) {
    const Floats sum = m[1] + m[2], difference = m[1] - m[2], wide = m[3] + m[4], steep = m[3] - m[4];
    to[0] = m[0] + sum + wide;
    to[1] = difference + 2.0f * steep;
    to[2] = sum + 4.0f * wide;
    to[3] = difference + 8.0f * steep + m[5];
  }
};

constexpr int64_t square(int64_t x) { return x * x; }

int64_t panels_of(int64_t columns) { return ceil_div(columns, kColumns); }

// ---- weights

enum { kKernelHeight, kKernelWidth, kKernelIn, kKernelOut };

struct Weights final : OpState {
  int64_t channels, columns;
  int64_t strides[4];
};

template <class F>
const char* run_weights(const TileArgs& args) noexcept {
  constexpr int kPatch = F::kPatch;
  const auto& op = *static_cast<const Weights*>(args.state);
  const auto* w = static_cast<const float*>(args.inputs[0]);
  auto* out = static_cast<float*>(args.output);
  const int64_t plane = panels_of(op.columns) * op.channels * kColumns;
  for (int64_t panel = args.lo[1]; panel < args.hi[1]; ++panel) {
    for (int64_t channel = args.lo[2]; channel < args.hi[2]; ++channel) {
      float columns[9][kColumns] = {};
      const int64_t first = panel * kColumns, count = std::min(kColumns, op.columns - first);
      for (int tap = 0; tap < 9; ++tap) {
        const float* from = w + tap / 3 * op.strides[kKernelHeight] + tap % 3 * op.strides[kKernelWidth] +
                            channel * op.strides[kKernelIn] + first * op.strides[kKernelOut];
        if (op.strides[kKernelOut] == 1) {
          std::copy_n(from, count, columns[tap]);
        } else {
          for (int64_t k = 0; k < count; ++k) columns[tap][k] = from[k * op.strides[kKernelOut]];
        }
      }
      float* const to = out + (panel * op.channels + channel) * kColumns;
      // The tile's box may hold some of the points and some of the columns only.
      for (int64_t k = args.lo[3] / kLanes * kLanes; k < args.hi[3]; k += kLanes) {
        Floats across[3][kPatch];
        for (int row = 0; row < 3; ++row) {
          const Floats g[3] = {load(columns[3 * row] + k), load(columns[3 * row + 1] + k), load(columns[3 * row + 2] + k)};
          F::weights(g, across[row]);
        }
        for (int column = 0; column < kPatch; ++column) {
          const Floats g[3] = {across[0][column], across[1][column], across[2][column]};
          Floats down[kPatch];
          F::weights(g, down);
          for (int row = 0; row < kPatch; ++row) {
            const int64_t point = row * kPatch + column;
            if (point < args.lo[0] || point >= args.hi[0]) continue;
            float* const lanes = to + point * plane + k;
            if (k >= args.lo[3] && k + kLanes <= args.hi[3]) {
              store(lanes, down[row]);
              continue;
            }
            for (int64_t lane = std::max<int64_t>(k, args.lo[3]); lane < std::min<int64_t>(k + kLanes, args.hi[3]); ++lane) {
              lanes[lane - k] = down[row][lane - k];
            }
          }
        }
      }
    }
  }
  return nullptr;
}

// ---- the convolution

enum { kImage, kHeight, kWidth, kChannel };

struct Winograd final : OpState {
  int64_t tile;  // outputs of a patch along each axis
  int64_t height, width, channels;
  int64_t pad[2];  // before the first row and column; may be negative
  int64_t panels;
  int64_t x_strides[4];
  int64_t u_strides[4];
  int64_t patch_stride;  // floats from one element of a transformed patch to the next
  int64_t patches;       // transformed at once, at most
  Epilogue epilogue;

  int64_t points() const { return square(tile + 2); }
  int64_t patch_floats() const { return patch_stride * points(); }
  int64_t transformed_bytes() const { return patches * patch_floats() * 4; }
  int64_t sums_bytes() const { return patches * points() * kColumns * 4; }
  // A line of patches, finished: as many rows of pixels as a patch has.
  int64_t line_bytes() const { return patches * square(tile) * kColumns * 4; }
};

// The channels [channel, channel + kLanes) of the patch whose first input is (row, column) of the image; zeros outside.
template <class F, bool kPartial>
ASPEN_INLINE void transform_patch(const Winograd& op, const float* image, int64_t row, int64_t column, int64_t channel, int lanes,
                                  float* to) {
  constexpr int kPatch = F::kPatch;
  Floats across[kPatch][kPatch];  // [point][row]
  for (int i = 0; i < kPatch; ++i) {
    Floats d[kPatch];
    const bool row_inside = row + i >= 0 && row + i < op.height;
    const float* from = image + (row + i) * op.x_strides[kHeight] + column * op.x_strides[kWidth] + channel;
    for (int j = 0; j < kPatch; ++j) {
      const bool inside = row_inside && column + j >= 0 && column + j < op.width;
      d[j] = !inside    ? Floats{}
             : kPartial ? load_partial(from + j * op.x_strides[kWidth], lanes)
                        : load(from + j * op.x_strides[kWidth]);
    }
    Floats points[kPatch];
    F::input(d, points);
    for (int j = 0; j < kPatch; ++j) across[j][i] = points[j];
  }
  for (int j = 0; j < kPatch; ++j) {
    Floats points[kPatch];
    F::input(across[j], points);
    for (int i = 0; i < kPatch; ++i) store(to + (i * kPatch + j) * op.patch_stride, points[i]);
  }
}

// A part of a tile in one image: some whole lines of patches, or a part of one.
template <class F>
struct Part {
  int64_t image;
  int64_t row, rows;        // of output pixels
  int64_t column, columns;  // likewise
  int64_t lines() const { return ceil_div(rows, F::kTile); }
  int64_t across() const { return ceil_div(columns, F::kTile); }
};

template <class F>
void transform_part(const Winograd& op, const float* image, const Part<F>& part, float* transformed) {
  for (int64_t line = 0; line < part.lines(); ++line) {
    for (int64_t patch = 0; patch < part.across(); ++patch, transformed += op.patch_floats()) {
      const int64_t row = part.row + line * F::kTile - op.pad[0], column = part.column + patch * F::kTile - op.pad[1];
      int64_t channel = 0;
      for (; channel + kLanes <= op.channels; channel += kLanes) {
        transform_patch<F, false>(op, image, row, column, channel, kLanes, transformed + channel);
      }
      if (channel < op.channels) {
        transform_patch<F, true>(op, image, row, column, channel, static_cast<int>(op.channels - channel), transformed + channel);
      }
    }
  }
}

// sums[patch][point][kColumns] = transformed patches times the panel. Meanwhile each point brings the weights of the next one
// into the cache, the last one those at `next`, if any.
void multiply_panel(const Winograd& op, const float* panel, const float* next, int64_t patches, const float* transformed,
                    float* sums) {
  const int64_t points = op.points();
  const float* pointers[kBlockRows];
  Block block;
  block.pointers = pointers;
  block.runs = 1;
  block.depth = op.channels;
  block.out_stride = points * kColumns;
  block.accumulate = false;
  const int64_t blocks = ceil_div(patches, kBlockRows);
  for (int64_t point = 0; point < points; ++point) {
    const RightOperand<float> weights{panel + point * op.u_strides[0], op.u_strides[2]};
    const float* const following = point + 1 < points ? weights.at + op.u_strides[0] : next;
    Ahead ahead{following, weights.stride, following == nullptr ? 0 : kColumns * int64_t{sizeof(float)} / kCacheLine};
    int64_t patch = 0;
    for (int64_t i = 0; i < blocks; ++i, patch += block.rows) {
      block.rows = static_cast<int>(patches / blocks + (i < patches % blocks));
      for (int r = 0; r < block.rows; ++r) pointers[r] = transformed + (patch + r) * op.patch_floats() + point * op.patch_stride;
      block.out = sums + (patch * points + point) * kColumns;
      if (kPanel == kColumns && weights.stride == kColumns) {
        multiply_packed(block, weights.at, kColumns, ahead);
      } else {
        multiply(block, weights, kColumns);
      }
    }
  }
}

// A line of patches back into kTile rows of `across * kTile` pixels of kColumns channels.
template <class F>
void transform_line(const float* sums, int64_t across, float* line) {
  constexpr int kTile = F::kTile, kPatch = F::kPatch;
  const int64_t row_stride = across * kTile * kColumns;
  for (int64_t patch = 0; patch < across; ++patch, sums += kPatch * kPatch * kColumns, line += kTile * kColumns) {
    for (int64_t k = 0; k < kColumns; k += kLanes) {
      Floats down[kTile][kPatch];
      for (int j = 0; j < kPatch; ++j) {
        Floats m[kPatch], y[kTile];
        for (int i = 0; i < kPatch; ++i) m[i] = load(sums + (i * kPatch + j) * kColumns + k);
        F::output(m, y);
        for (int i = 0; i < kTile; ++i) down[i][j] = y[i];
      }
      for (int i = 0; i < kTile; ++i) {
        Floats y[kTile];
        F::output(down[i], y);
        for (int j = 0; j < kTile; ++j) store(line + i * row_stride + j * kColumns + k, y[j]);
      }
    }
  }
}

template <class F>
void run_part(const Winograd& op, const TileArgs& args, const Part<F>& part) {
  constexpr int kTile = F::kTile;
  auto* const transformed = reinterpret_cast<float*>(args.scratch);
  auto* const sums = reinterpret_cast<float*>(args.scratch + op.transformed_bytes());
  auto* const line = reinterpret_cast<float*>(args.scratch + op.transformed_bytes() + op.sums_bytes());
  std::byte* const epilogue_scratch = args.scratch + op.transformed_bytes() + op.sums_bytes() + op.line_bytes();
  const float* image = static_cast<const float*>(args.inputs[0]) + part.image * op.x_strides[kImage];
  const auto* u = static_cast<const float*>(args.inputs[1]);
  transform_part(op, image, part, transformed);
  for (int64_t panel = args.lo[kChannel] / kColumns; panel * kColumns < args.hi[kChannel]; ++panel) {
    const float* const weights = u + panel * op.u_strides[1];
    const float* const next = panel + 1 < op.panels ? weights + op.u_strides[1] : nullptr;
    multiply_panel(op, weights, next, part.lines() * part.across(), transformed, sums);
    const int64_t first = std::max<int64_t>(panel * kColumns, args.lo[kChannel]);
    const int64_t count = std::min<int64_t>((panel + 1) * kColumns, args.hi[kChannel]) - first;
    for (int64_t l = 0; l < part.lines(); ++l) {
      transform_line<F>(sums + l * part.across() * op.points() * kColumns, part.across(), line);
      for (int64_t i = 0; i < std::min<int64_t>(kTile, part.rows - l * kTile); ++i) {
        const int64_t at[4] = {part.image, part.row + l * kTile + i, part.column, first};
        op.epilogue.apply(args, at, kWidth, part.columns, count,
                          line + i * part.across() * kTile * kColumns + first - panel * kColumns, kColumns, epilogue_scratch);
      }
    }
  }
}

template <class F>
const char* run(const TileArgs& args) noexcept {
  constexpr int kTile = F::kTile;
  const auto& op = *static_cast<const Winograd*>(args.state);
  // Parts of equally many lines, so that none multiplies few patches by all weights.
  const int64_t most_columns = std::min<int64_t>(op.patches * kTile, args.hi[kWidth] - args.lo[kWidth]);
  const int64_t lines = ceil_div(args.hi[kHeight] - args.lo[kHeight], kTile);
  const int64_t most_lines = op.patches / ceil_div(most_columns, kTile);
  const int64_t most_rows = ceil_div(lines, ceil_div(lines, most_lines)) * kTile;
  for (int64_t image = args.lo[kImage]; image < args.hi[kImage]; ++image) {
    for (int64_t row = args.lo[kHeight]; row < args.hi[kHeight]; row += most_rows) {
      for (int64_t column = args.lo[kWidth]; column < args.hi[kWidth]; column += most_columns) {
        run_part<F>(op, args,
                    {.image = image,
                     .row = row,
                     .rows = std::min<int64_t>(most_rows, args.hi[kHeight] - row),
                     .column = column,
                     .columns = std::min<int64_t>(most_columns, args.hi[kWidth] - column)});
      }
    }
  }
  return nullptr;
}

}  // namespace

namespace {

// The number of outputs of a patch along an axis.
int64_t read_tile(WordReader& words) {
  const int64_t tile = words.integer(2, 4, "winograd's outputs of a patch");
  if (tile == 3) throw GraphError("winograd has no transforms for patches of 3x3 outputs, only of 2x2 and 4x4");
  return tile;
}

}  // namespace

PreparedOp prepare_winograd_weights(const OpSpec& spec) {
  if (spec.inputs.size() != 1) throw GraphError("winograd_weights needs one input, w");
  const TensorView& w = spec.inputs[0];
  check_rank(w, 4, "winograd_weights' input");
  check_rank(spec.output, 4, "winograd_weights' output");
  check_float32(w, "winograd_weights' input");
  check_float32(spec.output, "winograd_weights' output");
  check_dense(spec.output, "winograd_weights' output");
  WordReader words(spec.params);
  const int64_t tile = read_tile(words);
  if (words.integer(0, 0, "winograd_weights' mark for a block program") != 0 || !words.done()) {
    throw GraphError("winograd_weights takes no epilogue");
  }
  const int64_t wanted[4] = {square(tile + 2), panels_of(w.shape[kKernelOut]), w.shape[kKernelIn], kColumns};
  if (w.shape[0] != 3 || w.shape[1] != 3 || !std::equal(wanted, wanted + 4, spec.output.shape)) {
    throw GraphError("winograd_weights of " + describe(w) + " does not give " + describe(spec.output));
  }
  auto op = std::make_unique<Weights>();
  op->channels = w.shape[kKernelIn];
  op->columns = w.shape[kKernelOut];
  for (int i = 0; i < 4; ++i) op->strides[i] = used_stride(w, i);
  PreparedOp prepared;
  prepared.run = tile == 2 ? run_weights<Filter<2>> : run_weights<Filter<4>>;
  prepared.state = std::move(op);
  return prepared;
}

PreparedOp prepare_winograd(const OpSpec& spec) {
  if (spec.inputs.size() < 2) throw GraphError("winograd needs two inputs, x and transformed weights");
  const TensorView& x = spec.inputs[0];
  const TensorView& u = spec.inputs[1];
  const TensorView& out = spec.output;
  check_rank(x, 4, "winograd's input x");
  check_rank(u, 4, "winograd's weights");
  check_rank(out, 4, "winograd's output");
  check_float32(x, "winograd's input x");
  check_float32(u, "winograd's weights");
  check_dense(out, "winograd's output");
  WordReader words(spec.params);
  const auto padding = words.list(4, "winograd's padding");
  for (const int64_t pad : padding) {
    if (pad < -kMaxExtent || pad > kMaxExtent) throw GraphError("winograd's padding is " + std::to_string(pad));
  }
  if (words.integer(0, kMaxExtent, "winograd's number of output channels") != out.shape[kChannel]) {
    throw GraphError("winograd's output has shape " + describe(out) + ", which is not the number of channels that it gives");
  }
  const int64_t tile = read_tile(words);
  for (int i = 0; i < 2; ++i) {
    const int64_t extent = std::max<int64_t>(0, x.shape[kHeight + i] + padding[2 * i] + padding[2 * i + 1] - 2);
    if (out.shape[kHeight + i] != extent) {
      throw GraphError("winograd's output has shape " + describe(out) + " where x " + describe(x) + " gives " +
                       std::to_string(extent) + " in dimension " + std::to_string(kHeight + i));
    }
  }
  if (out.shape[kImage] != x.shape[kImage] || u.shape[0] != square(tile + 2) || u.shape[1] != panels_of(out.shape[kChannel]) ||
      u.shape[2] != x.shape[kChannel] || u.shape[3] != kColumns) {
    throw GraphError("winograd's shapes x " + describe(x) + ", weights " + describe(u) + " and output " + describe(out) +
                     " do not fit together");
  }
  auto op = std::make_unique<Winograd>();
  op->tile = tile;
  op->height = x.shape[kHeight];
  op->width = x.shape[kWidth];
  op->channels = x.shape[kChannel];
  op->panels = panels_of(out.shape[kChannel]);
  op->pad[0] = padding[0];
  op->pad[1] = padding[2];
  for (int i = 0; i < 4; ++i) {
    op->x_strides[i] = used_stride(x, i);
    op->u_strides[i] = used_stride(u, i);
  }
  if ((x.shape[kChannel] > 1 && op->x_strides[kChannel] != 1) || (!is_empty(u) && op->u_strides[3] != 1)) {
    throw GraphError("winograd needs adjacent channels of x and adjacent columns of its weights; copy them first");
  }
  // Rows of a patch that lie whole pages apart would share their places in the L1 cache.
  op->patch_stride = round_up(op->channels, kLanes) + kLanes;
  const int64_t of_output = ceil_div(out.shape[kHeight], tile) * ceil_div(out.shape[kWidth], tile);
  op->patches = std::clamp<int64_t>(kMostPatchFloats / op->patch_floats(), kBlockRows, std::max<int64_t>(of_output, kBlockRows));
  op->epilogue = Epilogue::parse(words, spec, 2, DType::kF32);
  PreparedOp prepared;
  prepared.run = tile == 2 ? run<Filter<2>> : run<Filter<4>>;
  prepared.scratch_bytes =
      static_cast<size_t>(op->transformed_bytes() + op->sums_bytes() + op->line_bytes()) + op->epilogue.scratch_bytes();
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace aspen::cpu::ASPEN_TARGET
