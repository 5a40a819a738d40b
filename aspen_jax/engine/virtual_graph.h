// What of a graph its simulation reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "traversal.h"

namespace aspen {

// Immutable: many simulations may read one at once.
class VirtualGraph {
 public:
  // The children of all tiles, one after the other, and how many each tile has; each tile's op and its depth, by which policies
  // order. Then what copies cost: the bytes that each tile writes, and of each arrow to a child whether the child reads them;
  // both may be empty, and nothing is copied then. Throws std::invalid_argument where these do not fit together or the arrows
  // lead in a circle.
  VirtualGraph(std::span<const int64_t> child_counts, std::span<const int64_t> children, std::span<const int64_t> tile_ops,
               std::span<const int64_t> depths, std::span<const int64_t> bytes = {}, std::span<const uint8_t> is_read = {});

  size_t num_tiles() const { return parents_.size(); }
  std::span<const PlannedTile> tiles() const { return tiles_; }
  const std::vector<int32_t>& children() const { return children_; }
  const std::vector<uint32_t>& parents() const { return parents_; }
  const std::vector<int32_t>& roots() const { return roots_; }
  const std::vector<int32_t>& depths() const { return depths_; }
  int max_depth() const { return max_depth_; }

  uint32_t op_of(uint32_t tile) const { return ops_[tile]; }
  int64_t bytes(uint32_t tile) const { return bytes_.empty() ? 0 : bytes_[tile]; }
  // The tiles that it waits for, one for each arrow, and of these the ones that it reads.
  std::span<const uint32_t> parents_of(uint32_t tile) const { return row(tile, first_parent_, parent_tiles_); }
  std::span<const uint32_t> read_by(uint32_t tile) const { return row(tile, first_read_, reads_); }

 private:
  static std::span<const uint32_t> row(uint32_t tile, const std::vector<uint32_t>& first, const std::vector<uint32_t>& all) {
    return std::span(all).subspan(first[tile], first[tile + 1] - first[tile]);
  }
  void turn_round(std::span<const uint8_t> is_wanted, std::vector<uint32_t>& first, std::vector<uint32_t>& all) const;
  bool is_acyclic() const;

  std::vector<PlannedTile> tiles_;  // and a sentinel: see Traversal; each counts as an op, as its depth is its own
  std::vector<uint32_t> ops_;
  std::vector<int32_t> children_;
  std::vector<uint32_t> parents_;
  std::vector<int32_t> roots_;
  std::vector<int32_t> depths_;
  std::vector<int64_t> bytes_;
  std::vector<uint32_t> first_parent_, parent_tiles_, first_read_, reads_;
  int max_depth_ = 0;
};

}  // namespace aspen
