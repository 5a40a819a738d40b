// Whether arrays handed in are those that a graph was made for, and how to say that they are not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernel.h"

namespace aspen {

// A type and shape as text, as in "float32[1,224,224,3]".
std::string describe(std::string_view dtype, std::span<const int64_t> shape);
std::string describe(const TensorView& tensor);

bool matches(const TensorView& wanted, std::optional<DType> dtype, std::span<const int64_t> shape);

// A message, as in "operand 2 is int32[3], but the graph was made for float32[3]".
std::string mismatch(std::string_view role, size_t index, std::string_view given, const TensorView& wanted);
std::string count_mismatch(std::string_view role, size_t given, size_t wanted);

}  // namespace aspen
