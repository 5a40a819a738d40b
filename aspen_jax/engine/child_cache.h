// The private store of a DSE for children that became ready (section 3.2, last paragraph).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace aspen {

inline constexpr uint32_t kNoTile = ~uint32_t{0};

// Tiles of one run, the last that came in goes first, as its parents' results are the warmest. No other DSE can take them, so
// that it needs no atomics, and others may idle meanwhile: a policy says how many it may hold.
class ChildCache {
 public:
  static constexpr int kMost = 31;

  int size() const noexcept { return size_; }
  void push(uint32_t tile) noexcept { tiles_[size_++] = tile; }
  uint32_t pop() noexcept { return size_ == 0 ? kNoTile : tiles_[--size_]; }

 private:
  int size_ = 0;
  std::array<uint32_t, kMost> tiles_;  // meaningful below the size
};

}  // namespace aspen
