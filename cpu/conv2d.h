// What the kernels of a 2-D convolution share: the checked geometry.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"
#include "spec_reader.h"

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
  static ConvShape parse(WordReader& words, const TensorView& x, const TensorView& w, const TensorView& out);
};

// What the kernels of convolutions prepare begins so.
struct ConvState : OpState {
  explicit ConvState(const ConvShape& s) : shape(s) {}
  ConvShape shape;
};

// PreparedOp::reads of a ConvState.
Box reads_of_conv(const OpState& op, const Box& box) noexcept;

// Input 2 of a convolution that multiplies x, of four dimensions, by a vector of its channels for each image. Throws GraphError
// where it is none.
const TensorView& read_channel_scale(const SpecReader& reader, const TensorView& x);

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
PreparedOp prepare_depthwise(const ConvShape& shape, SpecReader& reader);

}  // namespace aspen::cpu::ASPEN_TARGET
