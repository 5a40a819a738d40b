// The outermost layer of a graph file: the envelope with its checksum, and the arrays of varints inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernel.h"

namespace aspen {

// Byte by byte, so that the format does not depend on the machine's byte order.
template <typename T>
T little_endian(std::span<const std::byte> bytes) {
  T result = 0;
  for (size_t i = sizeof(T); i-- > 0;) result = static_cast<T>(result << 8) | static_cast<T>(bytes[i]);
  return result;
}

// CRC-32 as in zlib.
uint32_t crc32(std::span<const std::byte> bytes);

// Reads the arrays in order. Everything throws GraphError naming the array. A count is believed only as far as there are bytes
// left to justify it: each element takes at least one.
class Wire {
 public:
  explicit Wire(std::span<const std::byte> bytes);

  // The version of the format: 1 or 2.
  uint32_t version() const { return version_; }

  // The next array, with all elements in [lo, hi], which must fit T.
  template <typename T>
  std::vector<T> array(const char* name, int64_t lo = std::numeric_limits<T>::min(), int64_t hi = std::numeric_limits<T>::max());

  // The next array, of exactly `size` elements.
  template <typename T>
  std::vector<T> array_of(size_t size, const char* name, int64_t lo = std::numeric_limits<T>::min(),
                          int64_t hi = std::numeric_limits<T>::max()) {
    auto result = array<T>(name, lo, hi);
    if (result.size() != size) throw_size(name, result.size(), size);
    return result;
  }

  // Throws if bytes are left over.
  void finish() const;

 private:
  uint64_t varint(const char* name);
  [[noreturn]] static void throw_size(const char* name, size_t size, size_t expected);

  uint32_t version_ = 0;
  std::span<const std::byte> rest_;
};

}  // namespace aspen
