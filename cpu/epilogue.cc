#include "epilogue.h"

#include <string>

#include "elements.h"
#include "planes.h"

namespace aspen::cpu::ASPEN_TARGET {

Epilogue Epilogue::parse(WordReader& words, const OpSpec& spec, size_t num_main, DType result) {
  Epilogue epilogue;
  const TensorView& output = spec.output;
  const size_t num_extra = spec.inputs.size() - num_main;
  epilogue.rank_ = output.rank;
  epilogue.num_main_ = num_main;
  epilogue.empty_ = words.integer(0, 1, "an op's mark for a block program") == 0;
  epilogue.result_ = result;
  epilogue.output_ = output.dtype;
  std::vector<DType> dtypes = {result};
  for (size_t i = 0; i < num_extra; ++i) {
    const TensorView& input = spec.inputs[num_main + i];
    if (input.rank != output.rank || !std::equal(input.shape, input.shape + input.rank, output.shape)) {
      throw GraphError("input " + std::to_string(num_main + i) + " belongs to the epilogue but has not the output's shape");
    }
    dtypes.push_back(input.dtype);
    epilogue.extra_.push_back({input.dtype, {}});
    std::copy_n(input.strides, input.rank, epilogue.extra_.back().strides);
  }
  std::copy_n(output.strides, output.rank, epilogue.out_strides_);
  const int last = output.rank - 1;
  epilogue.fits_output_ =
      size_of(output.dtype) == size_of(result) && (last < 0 || output.strides[last] == 1 || output.shape[last] == 1);
  if (epilogue.empty_) {
    if (num_extra != 0) throw GraphError("there are " + std::to_string(num_extra) + " epilogue inputs but no epilogue");
    if (result != output.dtype && !(is_float(result) && is_float(output.dtype))) {
      throw GraphError("the output's dtype is not the kernel's, and there is no epilogue to convert");
    }
  } else {
    epilogue.program_ = BlockProgram::parse(words, dtypes, output.dtype);
  }
  if (!words.done()) throw GraphError("there are words after an op's parameters");

  for (int axis = 1; axis < output.rank; ++axis) {
    const auto runs_on = [&](const int64_t* strides) { return strides[axis - 1] == output.shape[axis] * strides[axis]; };
    epilogue.runs_on_[axis] = runs_on(output.strides);
    for (const Extra& extra : epilogue.extra_) epilogue.runs_on_[axis] &= runs_on(extra.strides);
  }
  return epilogue;
}

std::byte* Epilogue::output_at(const TileArgs& args, const int64_t* at) const noexcept {
  int64_t offset = 0;
  for (int axis = 0; axis < rank_; ++axis) offset += at[axis] * out_strides_[axis];
  return static_cast<std::byte*>(args.output) + offset * size_of(output_);
}

void Epilogue::apply(const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols, const void* acc,
                     int64_t acc_row_stride, std::byte* scratch) const noexcept {
  const auto plane_of = [&](const void* base, DType dtype, const int64_t* strides) {
    int64_t offset = 0;
    for (int axis = 0; axis < rank_; ++axis) offset += at[axis] * strides[axis];
    return Plane{static_cast<const std::byte*>(base) + offset * size_of(dtype), row_axis < 0 ? 0 : strides[row_axis],
                 rank_ == 0 ? 1 : strides[rank_ - 1]};
  };
  const Plane to = plane_of(args.output, output_, out_strides_);
  std::byte* const out = output_at(args, at);
  if (empty_ && output_ != result_) {
    store_lanes(output_, static_cast<const int32_t*>(acc), acc_row_stride, 1, out, to.row_stride, to.col_stride, rows, cols);
    return;
  }
  if (empty_) {
    copy_elements(size_of(output_), acc, acc_row_stride, 1, out, to.row_stride, to.col_stride, rows, cols);
    return;
  }
  Plane planes[BlockProgram::kMaxInputs];
  planes[0] = {acc, acc_row_stride, 1};
  for (size_t i = 0; i < extra_.size(); ++i) {
    planes[i + 1] = plane_of(args.inputs[num_main_ + i], extra_[i].dtype, extra_[i].strides);
  }
  program_.run(planes, out, to.row_stride, to.col_stride, rows, cols, scratch);
}

}  // namespace aspen::cpu::ASPEN_TARGET
