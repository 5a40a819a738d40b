// conv2d: x [N,H,W,C] with w [KH,KW,C/groups,O], both through any views; float32, or floats of 16 bits, which are widened on
// the way to the product. Direct: no im2col. A row of the product is an output pixel; its runs are the taps, each C/groups
// adjacent floats of x, or a row of zeros where the tap falls into the padding. conv2d_panels: the same in one group with
// w [ceil(O/32),KH,KW,C,32], stored in panels (panels.h).
#include "conv2d.h"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "elements.h"
#include "epilogue.h"
#include "product.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_conv2d(const OpSpec& spec);
PreparedOp prepare_conv2d_panels(const OpSpec& spec);

ConvShape ConvShape::parse(WordReader& words, const TensorView& x, const TensorView& w, const TensorView& out) {
  check_view(x, "x", {.rank = 4, .dtypes = kFloats});
  check_view(w, "the weights", {.rank = 4, .dtypes = x.dtype});
  check_view(out, "the output", {.rank = 4, .dense = true});
  const auto strides = words.list(2, 1, kMaxExtent, "strides");
  const auto padding = words.list(4, -kMaxExtent, kMaxExtent, "padding");
  const auto dilation = words.list(2, 1, kMaxExtent, "dilation");
  ConvShape s;
  s.dtype = x.dtype;
  s.groups = words.integer(1, kMaxExtent, "the number of groups");
  s.height = x.shape[kHeight];
  s.width = x.shape[kWidth];
  s.channels = x.shape[kChannel];
  s.kernel_channels = w.shape[kKernelIn];
  s.out_height = out.shape[kHeight];
  s.out_width = out.shape[kWidth];
  s.out_channels = w.shape[kKernelOut];
  for (int i = 0; i < 2; ++i) {
    check_range(w.shape[i], 1, kMaxExtent, "the window's extent");
    s.kernel[i] = w.shape[i];
    s.stride[i] = strides[i];
    s.dilation[i] = dilation[i];
    s.pad[i] = padding[2 * i];
    const int64_t padded = x.shape[kHeight + i] + s.pad[i] + padding[2 * i + 1];
    check_extent(out, "the output", kHeight + i, num_windows(padded, (s.kernel[i] - 1) * s.dilation[i] + 1, s.stride[i]));
  }
  check_extent(out, "the output", kImage, x.shape[kImage]);
  check_extent(out, "the output", kChannel, s.out_channels);
  if (s.kernel_channels * s.groups != s.channels || s.out_channels % s.groups != 0) {
    throw GraphError("the shapes x " + describe(x) + " and w " + describe(w) + " do not fit together with " +
                     std::to_string(s.groups) + " groups");
  }
  constexpr int64_t kMaxInner = int64_t{1} << 40;
  if (s.kernel[0] * s.kernel[1] > kMaxInner / std::max<int64_t>(s.kernel_channels, 1)) {
    throw GraphError("the weights " + describe(w) + " sum more than 2^40 products for one output");
  }
  for (int i = 0; i < 4; ++i) {
    s.x_strides[i] = used_stride(x, i);
    s.w_strides[i] = used_stride(w, i);
  }
  // A single element is adjacent to itself: what is never stepped over need not be gathered.
  if (x.shape[kChannel] <= 1) s.x_strides[kChannel] = 1;
  if (w.shape[kKernelOut] <= 1) s.w_strides[kKernelOut] = 1;
  return s;
}

Box reads_of_conv(const OpState& op, const Box& box) noexcept {
  const ConvShape& s = static_cast<const ConvState&>(op).shape;
  Box read = box;
  for (int i = 0; i < 2; ++i) {
    const int axis = kHeight + i;
    const int64_t extent = axis == kHeight ? s.height : s.width;
    const int64_t end = (box.hi[axis] - 1) * s.stride[i] - s.pad[i] + (s.kernel[i] - 1) * s.dilation[i] + 1;
    read.lo[axis] = static_cast<int32_t>(std::clamp<int64_t>(box.lo[axis] * s.stride[i] - s.pad[i], 0, extent));
    read.hi[axis] = static_cast<int32_t>(std::clamp<int64_t>(end, read.lo[axis], extent));
  }
  const int64_t per_group = std::max<int64_t>(s.out_channels / s.groups, 1);
  read.lo[kChannel] = static_cast<int32_t>(box.lo[kChannel] / per_group * s.kernel_channels);
  read.hi[kChannel] = static_cast<int32_t>(((box.hi[kChannel] - 1) / per_group + 1) * s.kernel_channels);
  return read;
}

const TensorView& read_channel_scale(const SpecReader& reader, const TensorView& x) {
  check_view(x, "x, which has a scale,", {.rank = 4});
  const TensorView& scale = reader.input(2, "the scale of x", {.rank = 4, .dtypes = DType::kF32, .adjacent = true});
  check_shape(scale, "the scale of x", shape_of(x));
  if (used_stride(scale, kHeight) != 0 || used_stride(scale, kWidth) != 0) {
    throw GraphError("the scale of x differs between the pixels of an image");
  }
  return scale;
}

namespace {

struct Conv2d final : ConvState {
  Conv2d(const ConvShape& s, bool in_panels, bool scales) : ConvState(s), scaled(scales) {
    // With few channels, and pixels of x side by side, the taps of a kernel row are one run.
    merged = !in_panels && shape.groups == 1 && shape.dilation[1] == 1 && shape.kernel[1] > 1 && shape.x_strides[kChannel] == 1 &&
             shape.x_strides[kWidth] == shape.channels && shape.channels <= kFewChannels && shape.kernel[1] <= kMaxMergedTaps;
    taps_across = merged ? 1 : shape.kernel[1];
    const int64_t depth = merged ? shape.kernel[1] * shape.channels : shape.kernel_channels;
    plan = ProductPlan(shape.kernel[0] * taps_across, depth, shape.out_channels / shape.groups,
                       merged || scaled || shape.x_strides[kChannel] != 1 || shape.dtype != DType::kF32);
    const auto each = [](const int64_t (&pair)[2], int64_t value) { return pair[0] == value && pair[1] == value; };
    in_line = each(shape.kernel, 1) && each(shape.stride, 1) && each(shape.pad, 0) && shape.x_strides[kChannel] == 1 &&
              shape.out_height == shape.height && shape.out_width == shape.width &&
              shape.x_strides[kHeight] == shape.width * shape.x_strides[kWidth];
    zeros.resize(static_cast<size_t>(plan.chunk_depth()));
    // Row k of the weights, counted through the taps, lies at k * w_row where kernel, rows and channels are dense.
    const auto& w = shape.w_strides;
    w_row = shape.kernel_channels > 1 ? w[kKernelIn] : shape.kernel[1] > 1 ? w[kKernelWidth] : w[kKernelHeight];
    w_in_place = w[kKernelOut] == 1 && (shape.kernel[1] == 1 || w[kKernelWidth] == shape.kernel_channels * w_row) &&
                 (shape.kernel[0] == 1 || w[kKernelHeight] == shape.kernel[1] * shape.kernel_channels * w_row);
  }

  static constexpr int64_t kFewChannels = 16;
  static constexpr int64_t kMaxMergedTaps = 64;

  bool merged;
  bool in_line;         // the pixels that those of the output read are equally far apart, from one row to the next too
  int64_t taps_across;  // runs in a row of the kernel
  int64_t w_row;
  bool w_in_place;
  bool scaled;
  int64_t scale_stride = 0;  // from image to image
  ProductPlan plan;
  std::vector<float> zeros;
  Epilogue epilogue;
};

void multiply_row(const float* x, const float* y, int64_t count, float* to) noexcept {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(x + i) * load(y + i));
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    store_partial(to + i, load_partial(x + i, rest) * load_partial(y + i, rest), rest);
  }
}

// Points the rows of one run at floats that are `step` apart. A whole block takes vectors of pointers: as many single stores
// would have to wait in the store queue, behind sums on their way to memory.
void point_evenly(const float* at, int64_t step, int rows, const float** pointers) {
  if (rows == kBlockRows) {
#pragma GCC unroll 16
    for (int r = 0; r < kBlockRows; ++r) pointers[r] = at + r * step;
  } else {
    for (int r = 0; r < rows; ++r) pointers[r] = at + r * step;
  }
}

// The output pixels of one tile in one image and one group, in row-major order.
template <class T>
struct Pixels {
  const Conv2d& op;
  const TileArgs& args;
  const T* x;          // first element of the image and group
  const T* w;          // first column of the tile in the group
  const float* scale;  // of the image's channels; null: none
  int64_t image;
  int64_t first_channel;  // of the output, of the tile in the group
  int64_t across;         // pixels in a row of the tile
  std::byte* epilogue_scratch;

  int64_t row_of(int64_t pixel) const { return args.lo[kHeight] + pixel / across; }
  int64_t column_of(int64_t pixel) const { return args.lo[kWidth] + pixel % across; }

  void point(int64_t pixel, int rows, const Chunk& chunk, const float** pointers, float* gathered) const {
    const ConvShape& s = op.shape;
    if constexpr (!Narrow<T>) {
      if (op.in_line && across == s.width) {
        const T* at = x + args.lo[kHeight] * s.x_strides[kHeight] + pixel * s.x_strides[kWidth] + chunk.begin;
        if (scale == nullptr) {
          point_evenly(at, s.x_strides[kWidth], rows, pointers);
        } else {
          for (int r = 0; r < rows; ++r, at += s.x_strides[kWidth]) pointers[r] = floats(at, chunk, gathered + r * chunk.depth);
        }
        return;
      }
    }
    // Pixels of one row of the output at a time: their windows begin equally far apart.
    const int64_t last_top = s.height - 1 - (s.kernel[0] - 1) * s.dilation[0];
    const int64_t last_left = s.width - 1 - (s.kernel[1] - 1) * s.dilation[1];
    const bool in_place = s.x_strides[kChannel] == 1 && scale == nullptr;
    int64_t row = row_of(pixel), column = column_of(pixel);
    for (int first = 0; first < rows;) {
      const int64_t top = row * s.stride[0] - s.pad[0], left = column * s.stride[1] - s.pad[1];
      // Those that begin in the padding are looked at by themselves.
      const int64_t end = left < 0 ? std::min<int64_t>(column + ceil_div(-left, s.stride[1]), args.hi[kWidth]) : args.hi[kWidth];
      const int last = static_cast<int>(std::min<int64_t>(rows, first + end - column));
      const bool inside = top >= 0 && top <= last_top && left >= 0 && left + (last - 1 - first) * s.stride[1] <= last_left;
      bool done = false;
      if constexpr (!Narrow<T>) {
        done = in_place && inside;
        if (done) point_inside(top, left, first, last, chunk, pointers);
      }
      if (!done) point_anywhere(top, left, first, last, chunk, pointers, gathered);
      column += last - first;
      first = last;
      if (column == args.hi[kWidth]) column = args.lo[kWidth], ++row;
    }
  }

  // Pixels [first, last) of a block, side by side, whose windows lie inside x, where their floats are read in place; the first
  // one's window begins at row `top` and column `left` of x.
  void point_inside(int64_t top, int64_t left, int first, int last, const Chunk& chunk, const float** pointers) const
    requires(!Narrow<T>)
  {
    const ConvShape& s = op.shape;
    const T* const corner = x + top * s.x_strides[kHeight] + left * s.x_strides[kWidth] + chunk.begin;
    const int64_t step = s.stride[1] * s.x_strides[kWidth];
    int64_t down = chunk.run / op.taps_across, right = chunk.run % op.taps_across;
    for (int64_t run = 0; run < chunk.runs; ++run, pointers += kBlockRows) {
      const T* const tap = corner + down * s.dilation[0] * s.x_strides[kHeight] + right * s.dilation[1] * s.x_strides[kWidth];
      point_evenly(tap, step, last - first, pointers + first);
      if (++right == op.taps_across) right = 0, ++down;
    }
  }

  // The same wherever the windows lie and however x does.
  void point_anywhere(int64_t top, int64_t left, int first, int last, const Chunk& chunk, const float** pointers,
                      float* gathered) const {
    const ConvShape& s = op.shape;
    const int64_t begin = chunk.begin * s.x_strides[kChannel];
    int64_t down = chunk.run / op.taps_across, right = chunk.run % op.taps_across;
    for (int64_t run = 0; run < chunk.runs; ++run, pointers += kBlockRows) {
      const int64_t h = top + down * s.dilation[0];
      int64_t v = left + right * s.dilation[1];
      for (int r = first; r < last; ++r, v += s.stride[1]) {
        if (h < 0 || h >= s.height) {
          pointers[r] = op.zeros.data();
        } else if (op.merged) {
          pointers[r] = merged_run(x + h * s.x_strides[kHeight], v, chunk, gathered + (r * chunk.runs + run) * chunk.depth);
        } else if (v < 0 || v >= s.width) {
          pointers[r] = op.zeros.data();
        } else {
          pointers[r] = floats(x + h * s.x_strides[kHeight] + v * s.x_strides[kWidth] + begin, chunk,
                               gathered + (r * chunk.runs + run) * chunk.depth);
        }
      }
      if (++right == op.taps_across) right = 0, ++down;
    }
  }

  // A run of channels as adjacent float32, scaled: where it is if it is that, else copied to `to`.
  const float* floats(const T* from, const Chunk& chunk, float* to) const {
    const int64_t step = op.shape.x_strides[kChannel];
    if constexpr (!Narrow<T>) {
      if (step == 1 && scale == nullptr) return from;
      if (step == 1) {
        multiply_row(from, scale + chunk.begin, chunk.depth, to);
        return to;
      }
    }
    widen_row(from, step, chunk.depth, to);
    if (scale != nullptr) multiply_row(to, scale + chunk.begin, chunk.depth, to);
    return to;
  }

  // Elements [begin, begin + depth) of the run of kernel[1] pixels from `column` on, in `line`; copied to `to`, with zeros for
  // the padding, unless they all exist.
  const float* merged_run(const T* line, int64_t column, const Chunk& chunk, float* to) const {
    const ConvShape& s = op.shape;
    const int64_t begin = column * s.channels + chunk.begin;
    const int64_t end = begin + chunk.depth;
    const int64_t size = s.width * s.channels;
    if (begin >= 0 && end <= size) return floats(line + begin, chunk, to);
    const int64_t from = std::clamp<int64_t>(begin, 0, size), until = std::clamp(end, from, size);
    if (from == until) return op.zeros.data();
    std::fill(to, to + (from - begin), 0.0f);
    widen_row(line + from, 1, until - from, to + (from - begin));
    std::fill(to + (until - begin), to + chunk.depth, 0.0f);
    return to;
  }

  void pack(int64_t column, int64_t columns, const Chunk& chunk, float* packed) const {
    const ConvShape& s = op.shape;
    const T* from = w + column * s.w_strides[kKernelOut];
    const int64_t total = chunk.runs * chunk.depth;
    const auto pack_rows = [&](const T* rows, int64_t count, int64_t first) {
      aspen::cpu::ASPEN_TARGET::pack(s.dtype, rows, s.w_strides[kKernelIn], s.w_strides[kKernelOut], count, columns, packed,
                                     first, total);
    };
    for (int64_t run = 0; run < chunk.runs; ++run) {
      const int64_t down = (chunk.run + run) / op.taps_across;
      const T* line = from + down * s.w_strides[kKernelHeight];
      if (!op.merged) {
        const int64_t right = (chunk.run + run) % op.taps_across;
        pack_rows(line + right * s.w_strides[kKernelWidth] + chunk.begin * s.w_strides[kKernelIn], chunk.depth,
                  run * chunk.depth);
        continue;
      }
      for (int64_t k = 0; k < chunk.depth;) {
        const int64_t right = (chunk.begin + k) / s.channels, channel = (chunk.begin + k) % s.channels;
        const int64_t count = std::min(s.channels - channel, chunk.depth - k);
        pack_rows(line + right * s.w_strides[kKernelWidth] + channel * s.w_strides[kKernelIn], count, run * chunk.depth + k);
        k += count;
      }
    }
  }

  const T* weights(int64_t column, const Chunk& chunk) const {
    return op.w_in_place ? w + column + (chunk.run * op.plan.depth() + chunk.begin) * op.w_row : nullptr;
  }
  int64_t weights_stride() const { return op.w_row; }
  int64_t columns_from(int64_t column) const { return op.shape.out_channels - first_channel - column; }

  float* direct(int64_t pixel, int rows, int64_t column, Finish& finish) const {
    if (!op.epilogue.begins_in_registers()) return nullptr;
    const bool runs_on = across == op.shape.out_width && op.epilogue.runs_on(kWidth);
    // What is the same for all rows need not be filled in again, and nothing divided.
    if (runs_on && finish.length > 0 && !finish.reads_rows) return output_of(args.lo[kHeight], pixel, column);
    const int64_t at[4] = {image, row_of(pixel), column_of(pixel), first_channel + column};
    if (!runs_on && at[kWidth] + rows > args.hi[kWidth]) return nullptr;
    op.epilogue.finish(args, at, kWidth, finish);
    return output_of(at[kHeight], at[kWidth], column);
  }
  float* output_of(int64_t row, int64_t pixel, int64_t column) const {
    return static_cast<float*>(args.output) +
           ((image * op.shape.out_height + row) * op.shape.out_width + pixel) * op.shape.out_channels + first_channel + column;
  }
  int64_t direct_stride() const { return op.shape.out_channels; }

  void complete(int64_t pixel, int rows, int64_t column, int64_t columns) const {
    const int64_t at[4] = {image, row_of(pixel), column_of(pixel), first_channel + column};
    op.epilogue.complete(args, at, kWidth, rows, columns, epilogue_scratch);
  }

  void finish(int64_t pixel, int rows, int64_t column, int64_t columns, const float* sums, int64_t stride) const {
    const bool runs_on = across == op.shape.out_width && op.epilogue.runs_on(kWidth);
    while (rows > 0) {
      const int64_t at[4] = {image, row_of(pixel), column_of(pixel), first_channel + column};
      const int64_t count = runs_on ? rows : std::min<int64_t>(rows, args.hi[kWidth] - at[kWidth]);
      op.epilogue.apply(args, at, kWidth, count, columns, sums, stride, epilogue_scratch);
      rows -= static_cast<int>(count);
      pixel += count;
      sums += count * stride;
    }
  }
};

// The same with the weights in panels.
struct PixelsOfPanels : Pixels<float> {
  StoredPanels panels() const { return {w, op.plan.runs() * op.plan.depth()}; }
  int64_t panels_column(int64_t column) const { return first_channel + column; }
};

static_assert(ProductSource<Pixels<float>> && ProductSource<Pixels<BF16>> && CompletesBlocks<Pixels<float>>);
static_assert(ProductSource<PixelsOfPanels> && InPanels<PixelsOfPanels> && CompletesBlocks<PixelsOfPanels>);

template <class Source>
const char* run(const TileArgs& args) noexcept {
  constexpr bool kInPanels = std::is_same_v<Source, PixelsOfPanels>;
  using T = std::remove_cvref_t<decltype(*Source::x)>;
  const auto& op = *static_cast<const Conv2d*>(args.state);
  const ConvShape& s = op.shape;
  const int32_t* lo = args.lo;
  const int32_t* hi = args.hi;
  const int64_t group_columns = s.out_channels / s.groups;
  const int64_t across = hi[kWidth] - lo[kWidth];
  const int64_t pixels = (hi[kHeight] - lo[kHeight]) * across;
  for (int64_t image = lo[kImage]; image < hi[kImage]; ++image) {
    for (int64_t channel = lo[kChannel]; channel < hi[kChannel];) {
      const int64_t group = channel / group_columns;
      const int64_t end = std::min<int64_t>((group + 1) * group_columns, hi[kChannel]);
      const Pixels<T> pixels_of_group{
          .op = op,
          .args = args,
          .x = static_cast<const T*>(args.inputs[0]) + image * s.x_strides[kImage] +
               group * s.kernel_channels * s.x_strides[kChannel],
          .w = static_cast<const T*>(args.inputs[1]) + (kInPanels ? 0 : channel * s.w_strides[kKernelOut]),
          .scale = op.scaled ? static_cast<const float*>(args.inputs[2]) + image * op.scale_stride : nullptr,
          .image = image,
          .first_channel = channel,
          .across = across,
          .epilogue_scratch = args.scratch + op.plan.scratch_bytes(),
      };
      op.plan.run(Source{pixels_of_group}, pixels, end - channel, args.scratch);
      channel = end;
    }
  }
  return nullptr;
}

PreparedOp prepare(const ConvShape& shape, SpecReader& reader, bool in_panels, const TensorView* scale) {
  auto op = std::make_unique<Conv2d>(shape, in_panels, scale != nullptr);
  if (scale != nullptr) op->scale_stride = used_stride(*scale, kImage);
  op->epilogue = Epilogue::parse(reader, scale == nullptr ? 2 : 3, DType::kF32);
  const RunTile run_tile =
      in_panels ? run<PixelsOfPanels> : visit_float(shape.dtype, []<class T>(T) -> RunTile { return run<Pixels<T>>; });
  const size_t scratch_bytes = op->plan.scratch_bytes() + op->epilogue.scratch_bytes();
  return {std::move(op), run_tile, scratch_bytes, reads_of_conv};
}

// The weights as [KH,KW,C,O], as they were before they were stored in panels; its strides mean nothing.
TensorView before_panels(const TensorView& w, int64_t columns) {
  check_extent(w, "the panels of the weights", 0, ceil_div(columns, kStoredPanel));
  check_extent(w, "the panels of the weights", 4, kStoredPanel);
  TensorView view = w;
  view.rank = 4;
  std::copy_n(w.shape + 1, 3, view.shape);
  view.shape[kKernelOut] = columns;
  return view;
}

}  // namespace

PreparedOp prepare_conv2d(const OpSpec& spec) {
  SpecReader reader(spec);
  const ConvShape shape = ConvShape::parse(reader, reader.input(0, "x", {}), reader.input(1, "the weights", {}), reader.output());
  if (is_depthwise(shape)) return prepare_depthwise(shape, reader);
  return prepare(shape, reader, false, nullptr);
}

PreparedOp prepare_conv2d_panels(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& x = reader.input(0, "x", {});
  const TensorView& panels = reader.input(1, "the panels of the weights", {.rank = 5, .dtypes = DType::kF32, .dense = true});
  const TensorView& out = reader.output({.rank = 4});
  const ConvShape shape = ConvShape::parse(reader, x, before_panels(panels, out.shape[kChannel]), out);
  check_range(shape.groups, 1, 1, "the number of groups");
  check_extent(out, "the output", kChannel, reader.integer(0, kMaxExtent, "the number of output channels"));
  const bool scaled = reader.flag("the mark for a scale of channels");
  return prepare(shape, reader, true, scaled ? &read_channel_scale(reader, x) : nullptr);
}

}  // namespace aspen::cpu::ASPEN_TARGET
