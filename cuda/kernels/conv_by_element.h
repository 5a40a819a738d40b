// Convolutions that are no product of whole vectors, or of too few channels a group: a thread computes an element by itself.
#pragma once

#include "elements.h"
#include "window.h"

namespace aspen::cuda {

struct ConvShape {
  Window window;
  int channels, outputs;  // of a group
};

template <class Op, class Input, class Weights, ConvShape kShape>
struct ConvByElement : EachElement<Op, ConvByElement<Op, Input, Weights, kShape>, 1> {
  static ASPEN_DEVICE uint32_t lane(const typename Op::Addresses& buffers, const int* at) {
    constexpr Window window = kShape.window;
    float sum = 0;
    const int first_channel = at[3] / kShape.outputs * kShape.channels;
    for (int kh = 0; kh < window.kernel_height; ++kh) {
      const int y = at[1] * window.y_step - window.top + kh * window.y_dilation;
      if (y < 0 || y >= window.height) continue;
      for (int kw = 0; kw < window.kernel_width; ++kw) {
        const int x = at[2] * window.x_step - window.left + kw * window.x_dilation;
        if (x < 0 || x >= window.width) continue;
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
