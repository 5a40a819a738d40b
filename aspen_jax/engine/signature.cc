#include "signature.h"

#include <algorithm>

namespace aspen {
namespace {

std::span<const int64_t> shape_of(const TensorView& tensor) { return {tensor.shape, static_cast<size_t>(tensor.rank)}; }

}  // namespace

std::string describe(std::string_view dtype, std::span<const int64_t> shape) {
  std::string text(dtype);
  char separator = '[';
  for (const int64_t extent : shape) {
    text += separator + std::to_string(extent);
    separator = ',';
  }
  return text + (shape.empty() ? "[]" : "]");
}

std::string describe(const TensorView& tensor) { return describe(name_of(tensor.dtype), shape_of(tensor)); }

bool matches(const TensorView& wanted, std::optional<DType> dtype, std::span<const int64_t> shape) {
  return dtype == wanted.dtype && std::ranges::equal(shape, shape_of(wanted));
}

std::string mismatch(std::string_view role, size_t index, std::string_view given, const TensorView& wanted) {
  return std::string(role) + " " + std::to_string(index) + " is " + std::string(given) + ", but the graph was made for " +
         describe(wanted) + "; pass arrays of that shape and dtype, or build a graph for these";
}

std::string count_mismatch(std::string_view role, size_t given, size_t wanted) {
  return "the graph was made for " + std::to_string(wanted) + " " + std::string(role) + (wanted == 1 ? "" : "s") + ", but got " +
         std::to_string(given) + "; pass as many arrays as the graph says, or build a graph for these";
}

}  // namespace aspen
