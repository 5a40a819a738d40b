// What the kernels of a 2-D convolution share: the checked geometry.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"

namespace aspen::cpu::ASPEN_TARGET {

// Axes of x and of the output, and of w.
enum { kImage, kHeight, kWidth, kChannel };
enum { kKernelHeight, kKernelWidth, kKernelIn, kKernelOut };

struct ConvShape {
  DType dtype;                         // of x and w
  int64_t height, width, channels;     // of x
  int64_t kernel[2], kernel_channels;  // of w; kernel_channels = channels / groups
  int64_t out_height, out_width, out_channels;
  int64_t stride[2], dilation[2];
  int64_t pad[2];  // before the first row and column; may be negative
  int64_t groups;
  int64_t x_strides[4];
  int64_t w_strides[4];

  // Reads the attributes and checks shapes and dtypes. Throws GraphError.
  static ConvShape parse(WordReader& words, const OpSpec& spec);
};

// Throws GraphError unless the scale of x, of four dimensions, is a vector of its channels for each image.
void check_channel_scale(const TensorView& scale, const TensorView& x, const char* what);

// The taps of one axis that fall inside the input when the window starts at `start`: [first, last).
struct Taps {
  int64_t first, last;
  Taps(int64_t start, int64_t dilation, int64_t taps, int64_t extent)
      : first(start >= 0 ? 0 : std::min((-start + dilation - 1) / dilation, taps)),
        last(start >= extent ? first : std::clamp((extent - 1 - start) / dilation + 1, first, taps)) {}
  friend bool operator==(const Taps&, const Taps&) = default;
};

// Convolutions whose groups have fewer output channels than a vector has lanes, and weights and buffers that suit depthwise.cc.
bool is_depthwise(const ConvShape& shape);
PreparedOp prepare_depthwise(const ConvShape& shape, WordReader& words, const OpSpec& spec);

}  // namespace aspen::cpu::ASPEN_TARGET
