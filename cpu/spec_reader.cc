#include "spec_reader.h"

#include <algorithm>

namespace aspen::cpu {

namespace {

std::string names_of(DTypes dtypes) {
  std::string text;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtypes.has(dtype)) text += (text.empty() ? "" : " or ") + std::string(name_of(dtype));
  }
  return text;
}

void check_rank(const TensorView& view, const std::string& what, Ranks wanted) {
  if (view.rank >= wanted.least && view.rank <= wanted.most) return;
  const std::string least = std::to_string(wanted.least), most = std::to_string(wanted.most);
  throw GraphError(what + " has rank " + std::to_string(view.rank) + ", where " +
                   (wanted.least == wanted.most ? least + " is needed" : least + " to " + most + " are needed"));
}

}  // namespace

void check_view(const TensorView& view, const std::string& what, const Wanted& wanted) {
  check_rank(view, what, wanted.rank);
  for (const int64_t extent : shape_of(view))
    check_range(extent, 0, kMaxExtent, what + ", " + describe(view) + ", has an extent that");
  if (!wanted.dtypes.has(view.dtype)) {
    throw GraphError(what + " is " + std::string(name_of(view.dtype)) + ", where " + names_of(wanted.dtypes) +
                     " is needed; leave other dtypes to XLA");
  }
  if (wanted.dense && !is_dense(view)) throw GraphError(what + " is not dense and row-major; copy it first");
  if (const int last = view.rank - 1; wanted.adjacent && last >= 0 && !is_empty(view)) {
    if (view.shape[last] > 1 && view.strides[last] != 1) {
      throw GraphError(what + " has a stride of " + std::to_string(view.strides[last]) +
                       " along its last axis, where 1 is needed; copy it first");
    }
  }
}

void check_shape(const TensorView& view, const std::string& what, std::span<const int64_t> wanted) {
  if (!std::ranges::equal(shape_of(view), wanted)) {
    throw GraphError(what + " has shape " + describe(view) + ", where " + describe(wanted) + " is needed");
  }
}

void check_extent(const TensorView& view, const std::string& what, int axis, int64_t wanted) {
  if (view.shape[axis] != wanted) {
    throw GraphError(what + " has shape " + describe(view) + ", where an extent of " + std::to_string(wanted) + " along axis " +
                     std::to_string(axis) + " is needed");
  }
}

const TensorView& SpecReader::input(size_t index, std::string what, Wanted wanted) const {
  if (index >= spec_.inputs.size()) {
    throw GraphError("the op has " + std::to_string(spec_.inputs.size()) + " inputs, where input " + std::to_string(index) +
                     ", " + what + ", is needed");
  }
  check_view(spec_.inputs[index], what, wanted);
  return spec_.inputs[index];
}

const TensorView& SpecReader::output(Wanted wanted) const {
  check_view(spec_.output, "the output", wanted);
  return spec_.output;
}

std::span<const TensorView> SpecReader::inputs_from(size_t first) const {
  return spec_.inputs.subspan(std::min(first, spec_.inputs.size()));
}

void SpecReader::end_inputs(size_t count) const {
  if (spec_.inputs.size() != count) {
    throw GraphError("the op has " + std::to_string(spec_.inputs.size()) + " inputs, where " + std::to_string(count) +
                     " are needed");
  }
}

PreparedOp prepare_part(const char* what, PreparedOp (*prepare)(const OpSpec&), const OpSpec& spec) {
  try {
    return prepare(spec);
  } catch (const GraphError& error) {
    throw GraphError(std::string(what) + ": " + error.what());
  }
}

}  // namespace aspen::cpu
