// conv2d where a group has fewer output channels than a vector has lanes, above all one (depthwise), vectorised over the output
// channels of several groups. Padding costs nothing: the taps that fall into it are left out, and pixels with the same taps are
// computed together.
//
// In a depthwise convolution lane o of the result is a sum over the taps of x[o] * w[o]. In a group of several channels it is
// also a sum over them: of x[group(o), k] * w[k, o]. So x is first spread: its k-th plane holds in lane o the channel k of o's
// group. Floats of 16 bits are spread too, which widens each of them once for all the windows that it is in.
#include "depthwise.h"

#include <array>
#include <memory>
#include <utility>

#include "conv2d.h"
#include "elements.h"
#include "epilogue.h"
#include "panels.h"
#include "shapes.h"
#include "sliding.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

struct Depthwise final : ConvState {
  using ConvState::ConvState;

  // Output columns [inner_first, inner_last) have all taps of a kernel row inside the input.
  int64_t inner_first, inner_last;
  // Channels are taken so many at a time that the rows of the input that a row of the output reads stay in the L1 cache until
  // the next rows have read them too.
  int64_t block_channels;
  bool spread;
  int64_t spread_rows;             // rows of the output for which x is spread at a time
  int64_t filter_floats;           // of one block's weights where they are widened, else 0
  const SlidingByPixels* sliding;  // null: for no windows of this kind
  Epilogue epilogue;
};

// Few neighbours take more vectors of channels each, so that their sums hide the latency of the adds too.
constexpr int vectors_for(int pixels) { return pixels <= 2 ? 4 : 2; }

// What the epilogue gets at a time.
constexpr int64_t kSumFloats = 4096;
constexpr int64_t kWindowFloats = 6 * 1024;
constexpr int64_t kBlockStep = 2 * kLanes;
constexpr int64_t kMaxBlockChannels = kSumFloats / 16;
constexpr int64_t kSpreadFloats = 64 * 1024;
constexpr int64_t kFilterFloats = 64 * 1024;

size_t kernel_scratch(const Depthwise& op) {
  return static_cast<size_t>(kSumFloats + (op.spread ? kSpreadFloats : 0) + op.filter_floats) * sizeof(float);
}

// A block of channels of the weights.
struct Filter {
  const float* w;
  int64_t down, across, plane;  // strides
};

// Where a block of channels of x lies: from row `row` and column `column` on, with adjacent channels, `depth` planes of each row.
struct Input {
  const float* x;
  int64_t row, column;
  int64_t depth;
  int64_t row_stride, plane_stride, column_stride;
};

// The window of one pixel, reduced to the taps that exist.
struct Window {
  const float* x;  // first tap, first channel
  const float* w;
  int64_t depth, taps_down, taps_across;
};

// `groups` times kPixels neighbours x kVectors vectors of channels. `lanes` counts the channels of the last vector and is read
// only where kPartial.
template <int kPixels, int kVectors, bool kPartial>
void micro(const Steps& steps, const Window& window, const Finish& finish, int64_t groups, int lanes,
           const Place& place) noexcept {
  const PixelVectors<kVectors, kPartial> get{lanes};
  const float* corner = window.x;
  float* out = place.out;
  for (int64_t group = 0; group < groups; ++group, corner += kPixels * steps.x_pixel) {
    Floats sum[kPixels][kVectors];
    const int begun = begin_in_registers(&finish, place.channel, sum, get);
    for (int64_t k = 0; k < window.depth; ++k) {
      const float* x_row = corner + k * steps.x_plane;
      const float* w_row = window.w + k * steps.w_plane;
      for (int64_t down = 0; down < window.taps_down; ++down, x_row += steps.x_down, w_row += steps.w_down) {
        const float* x = x_row;
        const float* w = w_row;
        for (int64_t across = 0; across < window.taps_across; ++across, x += steps.x_across, w += steps.w_across) {
          Floats filter[kVectors];
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) filter[v] = get(w + v * kLanes, v);
          const float* pixel = x;
#pragma GCC unroll 16
          for (int p = 0; p < kPixels; ++p, pixel += steps.x_pixel) {
#pragma GCC unroll 16
            for (int v = 0; v < kVectors; ++v) sum[p][v] = fma(get(pixel + v * kLanes, v), filter[v], sum[p][v]);
          }
        }
      }
    }
    finish_in_registers(finish, begun, place.pixel + group * kPixels, place.channel, sum, get);
    out = get.store_all(sum, out, steps.out_pixel);
  }
}

template <int kPixels>
void all_channels(const Steps& steps, Window window, const Finish& finish, int64_t groups, int64_t channels,
                  Place place) noexcept {
  constexpr int kVectors = vectors_for(kPixels);
  const auto whole = [&]<int kSome>() {
    for (; channels >= kSome * kLanes; advance(window, place, channels, kSome * kLanes)) {
      micro<kPixels, kSome, false>(steps, window, finish, groups, 0, place);
    }
  };
  whole.template operator()<kVectors>();
  if constexpr (kVectors > 2) whole.template operator()<2>();
  whole.template operator()<1>();
  if (channels > 0) micro<kPixels, 1, true>(steps, window, finish, groups, static_cast<int>(channels), place);
}

using AllChannels = void (*)(const Steps&, Window, const Finish&, int64_t groups, int64_t channels, Place) noexcept;
constexpr auto kByPixels = []<int... kPixel>(std::integer_sequence<int, kPixel...>) {
  return std::array<AllChannels, kPixelGroup>{all_channels<kPixel + 1>...};
}(std::make_integer_sequence<int, kPixelGroup>());

// Columns [begin, end) of one row of the output, in one image and block of channels.
void run_row(const Depthwise& op, const Input& input, const Filter& filter, int64_t row, int64_t begin, int64_t end,
             const Finish& finish, int64_t channels, float* out, int64_t out_pixel) noexcept {
  const ConvShape& s = op.shape;
  const Steps steps{.x_plane = input.plane_stride,
                    .x_down = s.dilation[0] * input.row_stride,
                    .x_across = s.dilation[1] * input.column_stride,
                    .x_pixel = s.stride[1] * input.column_stride,
                    .w_plane = filter.plane,
                    .w_down = filter.down,
                    .w_across = filter.across,
                    .out_pixel = out_pixel};
  const int64_t top = row * s.stride[0] - s.pad[0];
  const Taps down(top, s.dilation[0], s.kernel[0], s.height);
  const int64_t first_row = top + down.first * s.dilation[0] - input.row;
  if (const int64_t count = end - begin; op.sliding != nullptr && count >= kLeastPixels) {
    // Groups as equal as can be.
    const int64_t groups = ceil_div(count, kPixelGroup), pixels = ceil_div(count, groups);
    const int64_t smaller = groups * pixels - count;
    Line line{input.x, filter.w, input.depth, down.last - down.first, begin * s.stride[1] - s.pad[1], s.width};
    if (line.taps_down > 0) {
      line.x += first_row * input.row_stride + (line.left - input.column) * input.column_stride;
      line.w += down.first * steps.w_down;
    }
    Place place{out, 0, 0};
    const auto take = [&](int64_t some, int64_t of_pixels) {
      if (some == 0) return;
      (*op.sliding)[static_cast<size_t>(of_pixels - kLeastPixels)](steps, line, finish, some, channels, place);
      line.x += some * of_pixels * steps.x_pixel;
      line.left += some * of_pixels * s.stride[1];
      place.out += some * of_pixels * out_pixel;
      place.pixel += some * of_pixels;
    };
    take(groups - smaller, pixels);
    take(smaller, pixels - 1);
    return;
  }
  for (int64_t column = begin; column < end;) {
    const int64_t left = column * s.stride[1] - s.pad[1];
    const Taps across(left, s.dilation[1], s.kernel[1], s.width);
    Window window{input.x, filter.w, input.depth, down.last - down.first, across.last - across.first};
    if (window.taps_down > 0 && window.taps_across > 0) {
      window.x += first_row * input.row_stride + (left + across.first * s.dilation[1] - input.column) * input.column_stride;
      window.w += down.first * steps.w_down + across.first * steps.w_across;
    }
    const bool inner = op.inner_first <= column && column < op.inner_last;
    const int64_t alike = inner ? std::min(end, op.inner_last) - column : 1;
    const int64_t groups = alike < kPixelGroup ? 1 : alike / kPixelGroup;
    const int64_t pixels = std::min<int64_t>(alike, kPixelGroup);
    kByPixels[static_cast<size_t>(pixels - 1)](steps, window, finish, groups, channels, {out, column - begin, 0});
    column += groups * pixels;
    out += groups * pixels * out_pixel;
  }
}

// Spreads the rows and columns of x that the box of the output [row, last_row) x [column, last_column) reads, for the output
// channels from `channel` on. `x` is at the image's first element.
template <class T>
Input spread(const ConvShape& s, const T* x, int64_t row, int64_t last_row, int64_t column, int64_t last_column, int64_t channel,
             int64_t channels, float* to) noexcept {
  const auto reach = [&](int axis, int64_t last, int64_t extent) {
    return std::min((last - 1) * s.stride[axis] - s.pad[axis] + (s.kernel[axis] - 1) * s.dilation[axis] + 1, extent);
  };
  Input input;
  input.x = to;
  input.row = std::max<int64_t>(row * s.stride[0] - s.pad[0], 0);
  input.column = std::max<int64_t>(column * s.stride[1] - s.pad[1], 0);
  const int64_t rows = reach(0, last_row, s.height) - input.row;
  const int64_t columns = std::max<int64_t>(reach(1, last_column, s.width) - input.column, 0);
  input.depth = s.kernel_channels;
  input.column_stride = kBlockStep;
  input.plane_stride = columns * kBlockStep;
  input.row_stride = input.depth * input.plane_stride;
  const int64_t group_columns = s.out_channels / s.groups;
  const int64_t step = s.x_strides[kChannel];
  // With as many channels in as out, and whole groups in a vector, each vector is a permutation of the one that lies there in x.
  const bool permutes = step == 1 && s.kernel_channels == group_columns && kLanes % group_columns == 0 &&
                        channel % group_columns == 0 && channels % group_columns == 0;
  for (int64_t h = 0; h < rows; ++h) {
    for (int64_t k = 0; k < input.depth; ++k) {
      const T* from = x + (input.row + h) * s.x_strides[kHeight] + input.column * s.x_strides[kWidth];
      Ints lanes = iota() - iota() % static_cast<int32_t>(group_columns) + static_cast<int32_t>(k);
      for (int64_t v = 0; v < columns; ++v, from += s.x_strides[kWidth], to += kBlockStep) {
        if (permutes) {
          int64_t c = 0;
          for (; c + kLanes <= channels; c += kLanes) store(to + c, permute(load(from + channel + c), lanes));
          if (c < channels) store(to + c, permute(load_partial(from + channel + c, static_cast<int>(channels - c)), lanes));
        } else {
          for (int64_t c = 0; c < channels; ++c) {
            to[c] = to_float(from[((channel + c) / group_columns * s.kernel_channels + k) * step]);
          }
        }
      }
    }
  }
  return input;
}

// Widens the weights of a block of channels, the first of them at `w`.
template <class T>
Filter widened_filter(const ConvShape& s, const T* w, int64_t channels, float* to) noexcept {
  Filter filter;
  filter.w = to;
  filter.plane = channels;
  filter.across = s.kernel_channels * filter.plane;
  filter.down = s.kernel[1] * filter.across;
  for (int64_t down = 0; down < s.kernel[0]; ++down) {
    for (int64_t across = 0; across < s.kernel[1]; ++across) {
      for (int64_t k = 0; k < s.kernel_channels; ++k, to += channels) {
        const T* from = w + down * s.w_strides[kKernelHeight] + across * s.w_strides[kKernelWidth] + k * s.w_strides[kKernelIn];
        widen_row(from, 1, channels, to);
      }
    }
  }
  return filter;
}

template <class T>
const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Depthwise*>(args.state);
  const ConvShape& s = op.shape;
  const int32_t* lo = args.lo;
  const int32_t* hi = args.hi;
  auto* const sums = reinterpret_cast<float*>(args.scratch);
  auto* const filter_to = sums + kSumFloats;
  auto* const spread_to = filter_to + op.filter_floats;
  std::byte* const epilogue_scratch = args.scratch + kernel_scratch(op);
  const bool direct = op.epilogue.begins_in_registers();
  for (int64_t image = lo[kImage]; image < hi[kImage]; ++image) {
    const T* x = static_cast<const T*>(args.inputs[0]) + image * s.x_strides[kImage];
    for (int64_t channel = lo[kChannel]; channel < hi[kChannel]; channel += op.block_channels) {
      const int64_t channels = std::min<int64_t>(op.block_channels, hi[kChannel] - channel);
      const T* w = static_cast<const T*>(args.inputs[1]) + channel;
      Input input = {};
      Filter filter = {};
      if constexpr (Narrow<T>) {
        filter = widened_filter(s, w, channels, filter_to);
      } else {
        input = {x + channel, 0, 0, 1, s.x_strides[kHeight], 0, s.x_strides[kWidth]};
        filter = {w, s.w_strides[kKernelHeight], s.w_strides[kKernelWidth], s.w_strides[kKernelIn]};
      }
      const int64_t out_pixel = direct ? s.out_channels : channels;
      for (int64_t row = lo[kHeight]; row < hi[kHeight]; ++row) {
        if (op.spread && (row - lo[kHeight]) % op.spread_rows == 0) {
          input = spread(s, x, row, std::min<int64_t>(row + op.spread_rows, hi[kHeight]), lo[kWidth], hi[kWidth], channel,
                         channels, spread_to);
        }
        const int64_t columns = direct ? hi[kWidth] - lo[kWidth] : kSumFloats / channels;
        for (int64_t begin = lo[kWidth]; begin < hi[kWidth]; begin += columns) {
          const int64_t end = std::min<int64_t>(begin + columns, hi[kWidth]);
          const int64_t at[4] = {image, row, begin, channel};
          float* out = sums;
          Finish finish;
          if (direct) {
            op.epilogue.finish(args, at, kWidth, finish);
            out = static_cast<float*>(args.output) + ((image * s.out_height + row) * s.out_width + begin) * s.out_channels +
                  channel;
          }
          run_row(op, input, filter, row, begin, end, finish, channels, out, out_pixel);
          if (!finish.completes) {
            op.epilogue.complete(args, at, kWidth, end - begin, channels, epilogue_scratch);
          } else if (!direct) {
            op.epilogue.apply(args, at, kWidth, end - begin, channels, sums, channels, epilogue_scratch);
          }
        }
      }
    }
  }
  return nullptr;
}

// Floats of x, spread, that one row of the output needs at most; taps that fall outside count nothing.
int64_t spread_row_floats(const ConvShape& s) {
  const int64_t rows = std::min((s.kernel[0] - 1) * s.dilation[0] + 1, s.height);
  if (s.kernel_channels > kSpreadFloats || rows > kSpreadFloats || s.width > kSpreadFloats) return kSpreadFloats + 1;
  return rows * s.width * s.kernel_channels * kBlockStep;
}

// Depthwise, and read where it lies.
bool is_plain(const ConvShape& s) {
  return s.dtype == DType::kF32 && s.kernel_channels == 1 && s.out_channels == s.groups && s.x_strides[kChannel] == 1;
}

// Floats of the weights of a block of channels where they are widened, at most kFilterFloats + 1.
int64_t filter_floats(const ConvShape& s) {
  if (s.dtype == DType::kF32) return 0;
  int64_t floats = kBlockStep;
  for (const int64_t extent : {s.kernel[0], s.kernel[1], s.kernel_channels}) {
    floats = std::min(floats * std::min(extent, kFilterFloats + 1), kFilterFloats + 1);
  }
  return floats;
}

}  // namespace

bool is_depthwise(const ConvShape& shape) {
  if (shape.w_strides[kKernelOut] != 1) return false;
  return is_plain(shape) || (shape.groups > 1 && shape.out_channels / shape.groups < kLanes &&
                             spread_row_floats(shape) <= kSpreadFloats && filter_floats(shape) <= kFilterFloats);
}

PreparedOp prepare_depthwise(const ConvShape& shape, SpecReader& reader) {
  auto op = std::make_unique<Depthwise>(shape);
  op->inner_first = ceil_div(std::max<int64_t>(shape.pad[1], 0), shape.stride[1]);
  const int64_t last_left = shape.width - 1 - (shape.kernel[1] - 1) * shape.dilation[1];
  op->inner_last = last_left + shape.pad[1] < 0 ? 0 : (last_left + shape.pad[1]) / shape.stride[1] + 1;
  op->spread = !is_plain(shape);
  op->filter_floats = filter_floats(shape);
  const int64_t rows = std::min((shape.kernel[0] - 1) * shape.dilation[0] + 1, std::max<int64_t>(shape.height, 1));
  if (op->spread) {
    op->block_channels = kBlockStep;
    const int64_t row_floats = std::max<int64_t>(shape.width * shape.kernel_channels * kBlockStep, 1);
    op->spread_rows = std::max<int64_t>((kSpreadFloats / row_floats - rows) / shape.stride[0] + 1, 1);
  } else {
    const int64_t window = rows * std::max<int64_t>(shape.width, 1);
    op->block_channels = std::clamp(kWindowFloats / window / kBlockStep * kBlockStep, kBlockStep, kMaxBlockChannels);
  }
  op->sliding = sliding_for(shape);
  op->epilogue = Epilogue::parse(reader, 2, DType::kF32);
  const RunTile run_tile = visit_float(shape.dtype, []<class T>(T) -> RunTile { return run<T>; });
  const size_t scratch_bytes = kernel_scratch(*op) + op->epilogue.scratch_bytes();
  return {std::move(op), run_tile, scratch_bytes, reads_of_conv};
}

}  // namespace aspen::cpu::ASPEN_TARGET
