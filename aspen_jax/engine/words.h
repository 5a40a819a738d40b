// Reading an op's parameters: a flat list of 64-bit words, in the order of the fields of the op's Python attributes.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernel.h"

namespace aspen {

// Every read is bounds-checked and throws GraphError, so a kernel's `prepare` can trust what it gets to be present (not to be
// sensible: ranges are the kernel's to check).
class WordReader {
 public:
  explicit WordReader(std::span<const int64_t> words) : words_(words) {}

  int64_t integer() {
    if (words_.empty()) throw GraphError("an op's parameters end early");
    const int64_t word = words_.front();
    words_ = words_.subspan(1);
    return word;
  }

  // An integer in [lo, hi].
  int64_t integer(int64_t lo, int64_t hi, const char* what) {
    const int64_t word = integer();
    if (word < lo || word > hi) {
      throw GraphError(std::string(what) + " is " + std::to_string(word) + ", outside [" + std::to_string(lo) + ", " +
                       std::to_string(hi) + "]");
    }
    return word;
  }

  double number() { return std::bit_cast<double>(integer()); }

  // A list is stored as its length, then its words.
  std::span<const int64_t> list() {
    const int64_t size = integer();
    if (size < 0 || static_cast<uint64_t>(size) > words_.size()) throw GraphError("an op's parameter list is cut short");
    const auto result = words_.first(static_cast<size_t>(size));
    words_ = words_.subspan(static_cast<size_t>(size));
    return result;
  }

  std::span<const int64_t> list(size_t size, const char* what) {
    const auto result = list();
    if (result.size() != size) {
      throw GraphError(std::string(what) + " has " + std::to_string(result.size()) + " entries where " + std::to_string(size) +
                       " are needed");
    }
    return result;
  }

  bool done() const { return words_.empty(); }

 private:
  std::span<const int64_t> words_;
};

}  // namespace aspen
