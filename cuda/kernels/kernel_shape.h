// What a kernel says of itself to who launches it, as a global op<n>_shape. Shared by kernels, the host and the fake of the
// driver.
#pragma once

#include <cstdint>

namespace aspen::cuda {

inline constexpr int kTensorRank = 5, kMostTensors = 2;

// CUtensorMap: of what a kernel copies in boxes, as the driver encodes it. Aligned as CUDA 13 wants it; for 12 half of it would
// do.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

// What such a map is made of, beside the address of an input: elements of 16 bits, the adjacent ones first; float32 is two of
// them. Boxes of 64 by any number of lines come to lie as Swizzle has them (warpgroup_mma.h); outside of the tensor are zeros.
// Along an axis
// every steps-th element is taken; a box counts those that are stepped over too.
struct TensorShape {
  int32_t input, rank;
  uint64_t extents[kTensorRank];
  uint64_t strides[kTensorRank - 1];  // bytes, of the axes but the first
  uint32_t box[kTensorRank], steps[kTensorRank];
};

// A matrix of a product by a library: lines of adjacent elements, each `line` elements behind the one before; the next matrix is
// `matrix` elements further.
struct LibraryMatrix {
  int32_t input;          // its number; -1: there is none, or it is the output
  int32_t is_transposed;  // lines are columns
  int64_t line, matrix;
};

enum ElementType : int32_t { kFloat32, kBFloat16, kFloat16 };

// What a library may multiply in a kernel's place (cuda/cublas.h): rows x depth by depth x columns, so many matrices of each,
// then the bias of each column, a matrix like the result, and a ReLU. Of float32, products have the precision of TF32.
struct LibraryProduct {
  int64_t rows, columns, depth, matrices;  // no matrices: there is no such product
  int32_t operands, result;                // ElementType
  LibraryMatrix left, right, added, output;
  int32_t bias;  // the number of an input; -1: there is none
  int32_t relu;  // whether there is one
};

// What a library may compute in a kernel's place (cuda/cudnn.h): a convolution of images [images, height, width, channels] by
// weights [outputs, kernel height, kernel width, channels], in float32. Then steps, each of which makes a register of one or two
// earlier ones. Register 0 has the sums, then come the operands. The last step is the result.
inline constexpr int kMostOperands = 10, kMostSteps = 14;
enum StepKind : int32_t { kAdd, kSubtract, kMultiply, kRelu };
struct LibraryStep {
  int32_t kind, first, second;  // second -1: there is none
};
struct LibraryOperand {
  int32_t input, type;  // ElementType
  int32_t is_vector;    // an element for each of the outputs; or else a tensor like the result
};
struct LibraryConvolution {
  int64_t images, height, width, channels, outputs, kernel_height, kernel_width, result_height, result_width;
  int64_t strides[2], dilation[2], before[2], after[2];  // of height and width; padding before and after
  int32_t type;                                          // of images, weights and the result
  int32_t num_operands, num_steps;
  LibraryOperand operands[kMostOperands];
  LibraryStep steps[kMostSteps];
};

// How many ops a launch may have.
inline constexpr int kMostOps = 8;

// Its first argument is `num_addresses` addresses and, from the next multiple of 128 bytes on, `num_tensors` maps. A kernel for
// several ops takes `most_ops` times as much. The y-th row of thread blocks computes the y-th of them.
struct KernelShape {
  int32_t threads, shared_bytes, num_addresses, num_tensors = 0;
  int32_t slices = 1;  // thread blocks of a tile, which are a cluster
  int32_t most_ops = 1;
  TensorShape tensors[kMostTensors] = {};
  LibraryProduct product = {};
  LibraryConvolution convolution = {};  // no images: there is none
};

}  // namespace aspen::cuda
