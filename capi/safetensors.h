// The header of a safetensors file (https://github.com/huggingface/safetensors, "Format"), from bytes that need not be trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace aspen {

// A file that is damaged, or of another kind than it should be.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct StoredTensor {
  std::string name;   // UTF-8
  std::string dtype;  // the format's own name, as in "BF16"
  std::vector<int64_t> shape;
  size_t begin = 0, end = 0;  // where its bytes lie in the file
};

inline constexpr size_t kSafetensorsPrefix = 8;

// How many bytes the header has, from the first 8 of the file. Throws FileError where the file cannot hold it.
size_t safetensors_header_size(std::span<const std::byte, kSafetensorsPrefix> prefix, size_t file_size);

// The tensors in the order of their bytes, which fill the rest of the file. Names differ; sizes are those of dtype and shape.
// Throws FileError.
std::vector<StoredTensor> parse_safetensors_header(std::span<const std::byte> header, size_t file_size);

}  // namespace aspen
