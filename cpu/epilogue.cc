#include "epilogue.h"

#include <memory>
#include <string>

#include "block_draft.h"
#include "elements.h"
#include "planes.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// Elements from the first one to coordinate `at`. One dimension after the other: coordinates that have just been written in
// words, and were then read in vectors, would have to reach the cache first, behind all the sums that were stored before.
int64_t offset_of(const int64_t* at, const int64_t* strides, int rank) {
  int64_t offset = 0;
  for (int axis = 0; axis < rank; ++axis) {
    offset += at[axis] * strides[axis];
    asm("" : "+r"(offset));  // not to be vectorised
  }
  return offset;
}

}  // namespace

Epilogue Epilogue::parse(SpecReader& reader, size_t num_main, DType result) {
  Epilogue epilogue;
  const TensorView& output = reader.output();
  epilogue.num_main_ = num_main;
  epilogue.empty_ = !reader.flag("the mark for a block program");
  epilogue.result_ = result;
  epilogue.read_views(reader.inputs_from(num_main), output);
  if (!epilogue.empty_) {
    epilogue.read_program(reader);
  } else if (!epilogue.extra_.empty()) {
    throw GraphError("there are " + std::to_string(epilogue.extra_.size()) + " inputs for an epilogue, but no epilogue");
  } else if (result != output.dtype && !(is_float(result) && is_float(output.dtype))) {
    throw GraphError("the output is " + std::string(name_of(output.dtype)) + ", the kernel's result " +
                     std::string(name_of(result)) + ", and there is no epilogue to convert it");
  }
  reader.end();
  return epilogue;
}

void Epilogue::read_views(std::span<const TensorView> extra, const TensorView& output) {
  for (size_t i = 0; i < extra.size(); ++i) {
    check_shape(extra[i], "input " + std::to_string(num_main_ + i) + ", which belongs to the epilogue,", shape_of(output));
    extra_.push_back({extra[i].dtype, {}});
    std::copy_n(extra[i].strides, extra[i].rank, extra_.back().strides);
  }
  rank_ = output.rank;
  output_ = output.dtype;
  std::copy_n(output.strides, output.rank, out_strides_);
  const int last = output.rank - 1;
  fits_output_ = size_of(output_) == size_of(result_) && (last < 0 || output.strides[last] == 1 || output.shape[last] == 1);
  for (int axis = 1; axis < output.rank; ++axis) {
    const auto runs_on = [&](const int64_t* strides) { return strides[axis - 1] == output.shape[axis] * strides[axis]; };
    runs_on_[axis] =
        runs_on(output.strides) && std::ranges::all_of(extra_, [&](const Extra& operand) { return runs_on(operand.strides); });
  }
}

void Epilogue::read_program(SpecReader& reader) {
  std::vector<DType> dtypes = {result_};
  for (const Extra& extra : extra_) dtypes.push_back(extra.dtype);
  Draft draft = read_draft(reader, dtypes, output_);
  program_ = BlockProgram::of(draft, dtypes, output_);
  // Sums in registers are vectors of adjacent float32, and so must be what they are joined with.
  const auto is_adjacent = [&](const TensorView& view) {
    return view.dtype == DType::kF32 && rank_ > 0 && view.strides[rank_ - 1] == 1;
  };
  if (draft.is_copy(dtypes, output_) || result_ != DType::kF32 || !is_adjacent(reader.output())) return;
  const auto extra = reader.inputs_from(num_main_);
  for (const Link& link : take_chain(draft, [&](int input) { return is_adjacent(extra[static_cast<size_t>(input - 1)]); })) {
    add_link(link);
  }
  has_rest_ = draft.result != 0;
  if (has_rest_ && !links_.empty()) rest_ = BlockProgram::of(draft, dtypes, output_);
}

void Epilogue::add_link(const Link& link) {
  if (link.input > 0) {
    links_.push_back({link.kind, link.input - 1, 0});
    return;
  }
  if (Operand* const before = links_.empty() ? nullptr : &links_.back();
      link.kind == Finish::kAtMost && before != nullptr && before->kind == Finish::kAtLeast && before->extra < 0) {
    before->kind = Finish::kBetween;  // the next splat is its second
  } else {
    links_.push_back({link.kind, -1, static_cast<int>(splats_.size())});
  }
  std::ranges::fill(splats_.emplace_back().lanes, link.constant);
}

std::byte* Epilogue::output_at(const TileArgs& args, const int64_t* at) const noexcept {
  return static_cast<std::byte*>(args.output) + offset_of(at, out_strides_, rank_) * size_of(output_);
}

void Epilogue::apply(const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols, const void* acc,
                     int64_t acc_row_stride, std::byte* scratch) const noexcept {
  if (!empty_) return run(program_, args, at, row_axis, rows, cols, acc, acc_row_stride, scratch);
  const int64_t row_stride = row_axis < 0 ? 0 : out_strides_[row_axis], col_stride = rank_ == 0 ? 1 : out_strides_[rank_ - 1];
  std::byte* const out = output_at(args, at);
  if (output_ != result_) {
    store_lanes(output_, static_cast<const int32_t*>(acc), acc_row_stride, 1, out, row_stride, col_stride, rows, cols);
  } else {
    copy_elements(size_of(output_), acc, acc_row_stride, 1, out, row_stride, col_stride, rows, cols);
  }
}

void Epilogue::run(const BlockProgram& program, const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols,
                   const void* acc, int64_t acc_row_stride, std::byte* scratch) const noexcept {
  const auto row_stride = [&](const int64_t* strides) { return row_axis < 0 ? 0 : strides[row_axis]; };
  const auto col_stride = [&](const int64_t* strides) { return rank_ == 0 ? 1 : strides[rank_ - 1]; };
  // Most programs have few inputs: the rest is not even initialised.
  alignas(Plane) std::byte storage[BlockProgram::kMaxInputs * sizeof(Plane)];
  auto* const planes = reinterpret_cast<Plane*>(storage);
  std::construct_at(planes, Plane{acc, acc_row_stride, 1});
  for (size_t i = 0; i < extra_.size(); ++i) {
    const Extra& extra = extra_[i];
    std::construct_at(planes + i + 1, Plane{extra_at(args, i, at), row_stride(extra.strides), col_stride(extra.strides)});
  }
  program.run(planes, output_at(args, at), row_stride(out_strides_), col_stride(out_strides_), rows, cols, scratch);
}

const std::byte* Epilogue::extra_at(const TileArgs& args, size_t extra, const int64_t* at) const noexcept {
  return static_cast<const std::byte*>(args.inputs[num_main_ + extra]) +
         offset_of(at, extra_[extra].strides, rank_) * size_of(extra_[extra].dtype);
}

void Epilogue::finish(const TileArgs& args, const int64_t* at, int row_axis, Finish& finish) const noexcept {
  finish.length = 0;
  finish.completes = !has_rest_;
  finish.reads_rows = false;
  for (const Operand& link : links_) {
    Finish::Step& step = finish.steps[finish.length++];
    if (link.extra < 0) {
      step = {link.kind, splats_[link.constant].lanes, 0, 0};
    } else {
      const auto extra = static_cast<size_t>(link.extra);
      step = {link.kind, reinterpret_cast<const float*>(extra_at(args, extra, at)), extra_[extra].strides[row_axis], 1};
      finish.reads_rows |= step.row_stride != 0;
    }
  }
}

void Epilogue::complete(const TileArgs& args, const int64_t* at, int row_axis, int64_t rows, int64_t cols,
                        std::byte* scratch) const noexcept {
  complete(args, at, row_axis, rows, cols, output_at(args, at), out_strides_[row_axis], scratch);
}

}  // namespace aspen::cpu::ASPEN_TARGET
