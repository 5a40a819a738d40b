// NumPy's .npy files (numpy.lib.format), as far as aspen-run needs them: dense arrays, the last dimension innermost.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "aspen.h"

namespace aspen {

// Fills `bytes` with the elements of a file that holds an array of this dtype and shape. Throws std::runtime_error.
void read_npy(const std::string& path, const aspen_tensor& wanted, std::span<std::byte> bytes);

// Throws std::runtime_error.
void write_npy(const std::string& path, const aspen_tensor& tensor, std::span<const std::byte> bytes);

}  // namespace aspen
