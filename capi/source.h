// Where the bytes of a file come from: the file system, or the caller's memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace aspen {

// The system could not open or read a file.
class IoError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Source {
 public:
  virtual ~Source() = default;
  virtual size_t size() const = 0;
  // Fills `bytes` with those that begin at `offset`, all of which lie inside the file. Throws IoError.
  virtual void read(size_t offset, std::span<std::byte> bytes) const = 0;
};

// A regular file, of the size that it has now. Throws IoError, for pipes, devices and folders too.
std::unique_ptr<Source> open_file(const std::string& path);

std::unique_ptr<Source> in_memory(std::span<const std::byte> bytes);

}  // namespace aspen
