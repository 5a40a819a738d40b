// Reading an op's parameters: a flat list of 64-bit words, in the order of the fields of the op's Python attributes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernel.h"

namespace aspen {

// Throws GraphError unless the value lies in [lo, hi].
inline void check_range(int64_t value, int64_t lo, int64_t hi, const std::string& what) {
  if (value >= lo && value <= hi) return;
  throw GraphError(what + " is " + std::to_string(value) + ", outside [" + std::to_string(lo) + ", " + std::to_string(hi) + "]");
}

// Every read is checked and throws GraphError where a word is missing or out of its range. So a kernel's `prepare` can trust
// what it gets.
class WordReader {
 public:
  explicit WordReader(std::span<const int64_t> words) : words_(words) {}

  // Any word, such as the bits of an element.
  int64_t integer() {
    if (words_.empty()) throw GraphError("the parameters end early");
    const int64_t word = words_.front();
    words_ = words_.subspan(1);
    return word;
  }

  // An integer in [lo, hi].
  int64_t integer(int64_t lo, int64_t hi, const char* what) {
    const int64_t word = integer();
    check_range(word, lo, hi, what);
    return word;
  }

  bool flag(const char* what) { return integer(0, 1, what) == 1; }

  DType dtype(const char* what) { return static_cast<DType>(integer(0, kNumDTypes - 1, what)); }

  // A list is stored as its length, then its words.
  std::span<const int64_t> list() {
    const int64_t size = integer();
    if (size < 0 || static_cast<uint64_t>(size) > words_.size()) throw GraphError("a list of the parameters is cut short");
    const auto result = words_.first(static_cast<size_t>(size));
    words_ = words_.subspan(static_cast<size_t>(size));
    return result;
  }

  std::span<const int64_t> list(size_t size, const char* what) {
    const auto result = list();
    if (result.size() != size) {
      throw GraphError(std::string(what) + " has " + std::to_string(result.size()) + " entries, where " + std::to_string(size) +
                       " are needed");
    }
    return result;
  }

  // A list of `size` integers in [lo, hi].
  std::span<const int64_t> list(size_t size, int64_t lo, int64_t hi, const char* what) {
    const auto result = list(size, what);
    for (size_t i = 0; i < size; ++i) check_range(result[i], lo, hi, std::string(what) + "[" + std::to_string(i) + "]");
    return result;
  }

  // A list of different axes of a tensor of this rank, in ascending order.
  std::span<const int64_t> axes(int rank, const char* what) {
    const auto result = list();
    int64_t least = 0;
    for (const int64_t axis : result) {
      check_range(axis, least, rank - 1, "an axis in " + std::string(what));
      least = axis + 1;
    }
    return result;
  }

  // Checks that there are no more words.
  void end() const {
    if (!words_.empty()) throw GraphError(std::to_string(words_.size()) + " words follow the parameters");
  }

  // The end of an op that takes no block program: the mark for one is 0.
  void end_without_program() {
    if (integer() != 0) throw GraphError("the op has a block program, and its kernel takes none");
    end();
  }

 private:
  std::span<const int64_t> words_;
};

}  // namespace aspen
