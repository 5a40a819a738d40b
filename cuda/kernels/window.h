// What a convolution reads for each element of its output.
#pragma once

namespace aspen::cuda {

struct Window {
  int height, width;  // of the input
  int kernel_height, kernel_width;
  int y_step, x_step;  // strides of the convolution
  int y_dilation, x_dilation;
  int top, left;  // padding
};

}  // namespace aspen::cuda
