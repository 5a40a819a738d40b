// conv2d_pair: a conv2d on the result of another one, which exists only in scratch memory, some rows at a time: as many as stay
// in the L2 cache until the second convolution has read them. Rows that the next strip of the output needs too are kept.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "conv2d.h"
#include "panels.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_conv2d(const OpSpec& spec);
PreparedOp prepare_conv2d_pair(const OpSpec& spec);

namespace {

// Of the value between; aspen_jax/ops/conv_pair.py knows it as well.
constexpr int64_t kBetweenFloats = 96 * 1024;

constexpr size_t kMaxPairInputs = 2 * BlockProgram::kMaxInputs;

struct Part {
  PreparedOp op;
  size_t first_input, num_inputs;  // of the pair's
};

struct Conv2dPair final : OpState {
  Part first, second;
  ConvShape shape;                   // of the second, on one image
  std::vector<int64_t> image_bytes;  // from image to image, for each input, then for the output
  int64_t row_floats;                // of the value between
  int64_t strip;                     // rows of the output at a time

  // The indices of axis kHeight or kWidth of the value between that indices [lo, hi) of the output read.
  std::pair<int64_t, int64_t> read_by(int axis, int64_t lo, int64_t hi) const {
    const int i = axis - kHeight;
    const int64_t extent = axis == kHeight ? shape.height : shape.width;
    const int64_t begin = std::clamp<int64_t>(lo * shape.stride[i] - shape.pad[i], 0, extent);
    const int64_t end = (hi - 1) * shape.stride[i] - shape.pad[i] + (shape.kernel[i] - 1) * shape.dilation[i] + 1;
    return {begin, std::clamp<int64_t>(end, begin, extent)};
  }
};

const char* run_pair(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Conv2dPair*>(args.state);
  const ConvShape& s = op.shape;
  auto* const between = reinterpret_cast<float*>(args.scratch);
  std::byte* const scratch = args.scratch + kBetweenFloats * sizeof(float);
  const auto [left, right] = op.read_by(kWidth, args.lo[kWidth], args.hi[kWidth]);
  const int64_t per_group = std::max<int64_t>(s.out_channels / s.groups, 1);
  const int64_t channel_lo = args.lo[kChannel] / per_group * s.kernel_channels;
  const int64_t channel_hi = ((args.hi[kChannel] - 1) / per_group + 1) * s.kernel_channels;
  const void* inputs[kMaxPairInputs];
  for (int64_t image = args.lo[kImage]; image < args.hi[kImage]; ++image) {
    const auto at_image = [&](size_t input) {
      return static_cast<const std::byte*>(args.inputs[input]) + image * op.image_bytes[input];
    };
    int64_t kept_begin = 0, kept_end = 0;  // rows that `between` holds, from its beginning on
    for (int64_t row = args.lo[kHeight]; row < args.hi[kHeight]; row += op.strip) {
      const int64_t last_row = std::min<int64_t>(row + op.strip, args.hi[kHeight]);
      const auto [begin, end] = op.read_by(kHeight, row, last_row);
      const int64_t kept = std::clamp<int64_t>(kept_end - begin, 0, end - begin);
      if (kept > 0 && begin > kept_begin) {
        std::memmove(between, between + (begin - kept_begin) * op.row_floats,
                     static_cast<size_t>(kept * op.row_floats) * sizeof(float));
      }
      kept_begin = begin;
      kept_end = end;
      // Both see the strip as rows [begin, end) of a whole image.
      auto* const origin = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(between) -
                                                        static_cast<uintptr_t>(begin * op.row_floats) * sizeof(float));
      if (begin + kept < end && left < right) {
        for (size_t i = 0; i < op.first.num_inputs; ++i) inputs[i] = at_image(i);
        const int32_t lo[4] = {0, static_cast<int32_t>(begin + kept), static_cast<int32_t>(left),
                               static_cast<int32_t>(channel_lo)};
        const int32_t hi[4] = {1, static_cast<int32_t>(end), static_cast<int32_t>(right), static_cast<int32_t>(channel_hi)};
        op.first.op.run({op.first.op.state.get(), inputs, origin, lo, hi, scratch});
      }
      inputs[0] = origin;
      for (size_t i = 0; i < op.second.num_inputs; ++i) inputs[i + 1] = at_image(op.second.first_input + i);
      const int32_t lo[4] = {0, static_cast<int32_t>(row), args.lo[kWidth], args.lo[kChannel]};
      const int32_t hi[4] = {1, static_cast<int32_t>(last_row), args.hi[kWidth], args.hi[kChannel]};
      std::byte* const out = static_cast<std::byte*>(args.output) + image * op.image_bytes.back();
      op.second.op.run({op.second.op.state.get(), inputs, out, lo, hi, scratch});
    }
  }
  return nullptr;
}

TensorView one_image(TensorView view) {
  view.shape[kImage] = 1;
  return view;
}

}  // namespace

PreparedOp prepare_conv2d_pair(const OpSpec& spec) {
  SpecReader reader(spec);
  const auto extents = reader.list(3, 1, kBetweenFloats, "the height, width and channels of the value between");
  const auto num_first = static_cast<size_t>(reader.integer(2, kMaxPairInputs - 2, "the number of inputs of the first"));
  const auto first_words = reader.list(), second_words = reader.list();
  reader.end_without_program();
  check_range(static_cast<int64_t>(spec.inputs.size()), static_cast<int64_t>(num_first) + 1, kMaxPairInputs - 1,
              "the number of inputs");
  reader.output({.rank = 4, .dense = true});
  auto op = std::make_unique<Conv2dPair>();
  std::vector<TensorView> views;
  for (const TensorView& input : spec.inputs) {
    check_view(input, "input " + std::to_string(views.size()), {.rank = 4});
    op->image_bytes.push_back(used_stride(input, kImage) * size_of(input.dtype));
    views.push_back(input);
  }
  op->image_bytes.push_back(spec.output.strides[kImage] * size_of(spec.output.dtype));
  for (const size_t weights : {size_t{1}, num_first}) op->image_bytes[weights] = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    if (i == 1 || i == num_first) continue;
    check_extent(views[i], "input " + std::to_string(i), kImage, spec.output.shape[kImage]);
    views[i] = one_image(views[i]);
  }

  TensorView between;
  between.dtype = DType::kF32;
  between.rank = 4;
  between.shape[kImage] = 1;
  std::ranges::copy(extents, between.shape + kHeight);
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; --axis) {
    between.strides[axis] = stride;
    stride *= between.shape[axis];
  }
  const TensorView output = one_image(spec.output);
  const std::span<const TensorView> inputs(views);
  const OpSpec first{inputs.first(num_first), between, first_words};
  op->first = {prepare_part("the first convolution", prepare_conv2d, first), 0, num_first};
  std::vector<TensorView> second_inputs = {between};
  second_inputs.insert(second_inputs.end(), views.begin() + static_cast<std::ptrdiff_t>(num_first), views.end());
  const OpSpec second{second_inputs, output, second_words};
  op->second = {prepare_part("the second convolution", prepare_conv2d, second), num_first, spec.inputs.size() - num_first};
  WordReader of_second(second_words);
  op->shape = ConvShape::parse(of_second, second_inputs[0], second_inputs[1], output);
  op->row_floats = between.strides[kHeight];
  const ConvShape& s = op->shape;
  const int64_t rows = kBetweenFloats / op->row_floats;
  const int64_t reach = std::min((s.kernel[0] - 1) * s.dilation[0] + 1, s.height);
  if (reach > rows) {
    throw GraphError("the rows for one row of the output, " + std::to_string(reach) + " of " + std::to_string(op->row_floats) +
                     " floats, are too many; run two conv2d instead");
  }
  op->strip = (rows - reach) / s.stride[0] + 1;
  const size_t scratch_bytes = kBetweenFloats * sizeof(float) + std::max(op->first.op.scratch_bytes, op->second.op.scratch_bytes);
  return {std::move(op), run_pair, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
