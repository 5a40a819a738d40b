// conv2d where every channel has a filter of its own, vectorised over channels. Padding costs nothing: the taps that fall into it
// are left out, and pixels with the same taps are computed together.
#include <memory>

#include "conv2d.h"
#include "epilogue.h"
#include "gemm.h"
#include "shapes.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

struct Depthwise final : OpState {
  ConvShape shape;
  Epilogue epilogue;
};

// Neighbours in a row of the output that are computed together: two vectors each, and their sums hide the latency of the adds.
constexpr int64_t kPixelGroup = kRegisters >= 32 ? 8 : 4;

// What the epilogue gets at a time stays in the L1 cache.
constexpr int64_t kSumFloats = 4096;

// The window of one pixel, reduced to the taps that exist.
struct Window {
  const float* x;  // first tap, first channel
  const float* w;
  int64_t taps_down, taps_across;
};

// kPixels neighbours x kVectors vectors of channels. `lanes` counts the channels of the last vector and is read only where
// kPartial.
template <int kPixels, int kVectors, bool kPartial>
ASPEN_INLINE void micro(const ConvShape& s, const Window& window, int64_t channel, [[maybe_unused]] int lanes, float* out,
                        int64_t out_stride) {
  constexpr int kLast = kVectors - 1;
  const auto get = [&](const float* from, int v) __attribute__((always_inline)) {
    return kPartial && v == kLast ? load_partial(from + v * kLanes, lanes) : load(from + v * kLanes);
  };
  const int64_t next_pixel = s.stride[1] * s.x_strides[kWidth];
  const int64_t x_down = s.dilation[0] * s.x_strides[kHeight], x_across = s.dilation[1] * s.x_strides[kWidth];
  Floats sum[kPixels][kVectors];
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[p][v] = Floats{};
  }
  for (int64_t down = 0; down < window.taps_down; ++down) {
    const float* x = window.x + channel + down * x_down;
    const float* w = window.w + channel + down * s.w_strides[kKernelHeight];
    for (int64_t right = 0; right < window.taps_across; ++right, x += x_across, w += s.w_strides[kKernelWidth]) {
      Floats filter[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) filter[v] = get(w, v);
#pragma GCC unroll 16
      for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[p][v] = fma(get(x + p * next_pixel, v), filter[v], sum[p][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      float* to = out + p * out_stride + v * kLanes;
      if (kPartial && v == kLast) {
        store_partial(to, sum[p][v], lanes);
      } else {
        store(to, sum[p][v]);
      }
    }
  }
}

template <int kPixels>
void all_channels(const ConvShape& s, const Window& window, int64_t channels, float* out, int64_t out_stride) noexcept {
  constexpr int kVectors = kPixels == 1 ? 4 : 2;
  int64_t channel = 0;
  for (; channel + kVectors * kLanes <= channels; channel += kVectors * kLanes) {
    micro<kPixels, kVectors, false>(s, window, channel, 0, out + channel, out_stride);
  }
  for (; channel + kLanes <= channels; channel += kLanes) {
    micro<kPixels, 1, false>(s, window, channel, 0, out + channel, out_stride);
  }
  if (channel < channels) {
    micro<kPixels, 1, true>(s, window, channel, static_cast<int>(channels - channel), out + channel, out_stride);
  }
}

const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Depthwise*>(args.state);
  const ConvShape& s = op.shape;
  const int32_t* lo = args.lo;
  const int32_t* hi = args.hi;
  auto* const sums = reinterpret_cast<float*>(args.scratch);
  std::byte* const epilogue_scratch = args.scratch + kSumFloats * 4;
  // Blocks of pixels x channels that fit the sums.
  const int64_t block_channels = std::min<int64_t>(hi[kChannel] - lo[kChannel], kSumFloats / kPixelGroup);
  if (block_channels <= 0) return nullptr;
  const int64_t block_pixels = op.epilogue.empty() ? hi[kWidth] - lo[kWidth] : kSumFloats / block_channels;
  for (int64_t image = lo[kImage]; image < hi[kImage]; ++image) {
    for (int64_t row = lo[kHeight]; row < hi[kHeight]; ++row) {
      const int64_t top = row * s.stride[0] - s.pad[0];
      const Taps down(top, s.dilation[0], s.kernel[0], s.height);
      for (int64_t channel = lo[kChannel]; channel < hi[kChannel]; channel += block_channels) {
        const int64_t channels = std::min(block_channels, hi[kChannel] - channel);
        const float* x = static_cast<const float*>(args.inputs[0]) + image * s.x_strides[kImage] + channel;
        const float* w = static_cast<const float*>(args.inputs[1]) + channel;
        for (int64_t begin = lo[kWidth]; begin < hi[kWidth]; begin += block_pixels) {
          const int64_t end = std::min<int64_t>(begin + block_pixels, hi[kWidth]);
          float* const first = op.epilogue.empty()
                                   ? static_cast<float*>(args.output) +
                                         ((image * s.out_height + row) * s.out_width + begin) * s.out_channels + channel
                                   : sums;
          const int64_t stride = op.epilogue.empty() ? s.out_channels : channels;
          float* out = first;
          for (int64_t column = begin; column < end;) {
            const int64_t left = column * s.stride[1] - s.pad[1];
            const Taps right(left, s.dilation[1], s.kernel[1], s.width);
            Window window{x, w, down.last - down.first, right.last - right.first};
            if (window.taps_down > 0 && window.taps_across > 0) {
              window.x += (top + down.first * s.dilation[0]) * s.x_strides[kHeight] +
                          (left + right.first * s.dilation[1]) * s.x_strides[kWidth];
              window.w += down.first * s.w_strides[kKernelHeight] + right.first * s.w_strides[kKernelWidth];
            }
            const int64_t last_left = left + (kPixelGroup - 1) * s.stride[1];
            const bool group = column + kPixelGroup <= end && Taps(last_left, s.dilation[1], s.kernel[1], s.width) == right;
            if (group) {
              all_channels<kPixelGroup>(s, window, channels, out, stride);
            } else {
              all_channels<1>(s, window, channels, out, stride);
            }
            const int64_t done = group ? kPixelGroup : 1;
            column += done;
            out += done * stride;
          }
          if (!op.epilogue.empty()) {
            const int64_t at[4] = {image, row, begin, channel};
            op.epilogue.apply(args, at, kWidth, end - begin, channels, sums, stride, epilogue_scratch);
          }
        }
      }
    }
  }
  return nullptr;
}

}  // namespace

bool is_depthwise(const ConvShape& shape) {
  return shape.kernel_channels == 1 && shape.groups == shape.channels && shape.out_channels == shape.channels &&
         shape.x_strides[kChannel] == 1 && shape.w_strides[kKernelOut] == 1;
}

PreparedOp prepare_depthwise(const ConvShape& shape, WordReader& words, const OpSpec& spec) {
  auto op = std::make_unique<Depthwise>();
  op->shape = shape;
  op->epilogue = Epilogue::parse(words, spec, 2, DType::kF32);
  PreparedOp prepared;
  prepared.run = run;
  prepared.scratch_bytes = kSumFloats * 4 + op->epilogue.scratch_bytes();
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace aspen::cpu::ASPEN_TARGET
