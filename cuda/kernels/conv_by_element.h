// Convolutions that are no product of whole vectors, or of too few channels a group: a thread computes an element by itself.
#pragma once

#include "elements.h"

namespace aspen::cuda {

struct ConvShape {
  int height, width;  // of the input
  int kernel_height, kernel_width;
  int channels, outputs;  // of a group
  int y_step, x_step;     // strides of the convolution
  int y_dilation, x_dilation;
  int top, left;  // padding
};

template <class Op, class Input, class Weights, ConvShape kShape>
struct ConvByElement : EachElement<Op, ConvByElement<Op, Input, Weights, kShape>, 1> {
  static ASPEN_DEVICE uint32_t lane(const typename Op::Addresses& buffers, const int* at) {
    float sum = 0;
    const int first_channel = at[3] / kShape.outputs * kShape.channels;
    for (int kh = 0; kh < kShape.kernel_height; ++kh) {
      const int y = at[1] * kShape.y_step - kShape.top + kh * kShape.y_dilation;
      if (y < 0 || y >= kShape.height) continue;
      for (int kw = 0; kw < kShape.kernel_width; ++kw) {
        const int x = at[2] * kShape.x_step - kShape.left + kw * kShape.x_dilation;
        if (x < 0 || x >= kShape.width) continue;
        for (int c = 0; c < kShape.channels; ++c) {
          const int pixel[] = {at[0], y, x, first_channel + c}, tap[] = {kh, kw, c, at[3]};
          sum += as_float(Input::lane(buffers, pixel)) * as_float(Weights::lane(buffers, tap));
        }
      }
    }
    return as_bits(sum);
  }
};

}  // namespace aspen::cuda
