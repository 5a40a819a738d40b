#include "virtual_graph.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace aspen {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

void check_range(std::span<const int64_t> numbers, int64_t limit, const char* what) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0 || numbers[i] >= limit) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(i) + " is " + std::to_string(numbers[i]) +
                                  ", outside [0, " + std::to_string(limit) + ")");
    }
  }
}

}  // namespace

VirtualGraph::VirtualGraph(std::span<const int64_t> child_counts, std::span<const int64_t> children,
                           std::span<const int64_t> tile_ops, std::span<const int64_t> depths, std::span<const int64_t> bytes,
                           std::span<const uint8_t> is_read)
    : ops_(tile_ops.begin(), tile_ops.end()),
      children_(children.begin(), children.end()),
      parents_(child_counts.size()),
      depths_(depths.begin(), depths.end()),
      bytes_(bytes.begin(), bytes.end()),
      max_depth_(depths_.empty() ? 0 : *std::max_element(depths_.begin(), depths_.end())) {
  const size_t num_tiles = child_counts.size(), num_edges = children.size();
  if (std::max(num_tiles, num_edges) > static_cast<size_t>(kMost)) {
    throw std::invalid_argument("a graph has up to " + std::to_string(kMost) + " tiles and edges");
  }
  if (tile_ops.size() != num_tiles || depths.size() != num_tiles)
    throw std::invalid_argument("each tile needs an op, a depth and a number of children");
  if (!bytes.empty() && bytes.size() != num_tiles) throw std::invalid_argument("each tile needs a number of bytes");
  if (!is_read.empty() && is_read.size() != num_edges) throw std::invalid_argument("of each edge it must be said if it is read");
  check_range(children, static_cast<int64_t>(num_tiles), "child");
  check_range(child_counts, static_cast<int64_t>(num_edges) + 1, "the number of children of tile");
  check_range(tile_ops, kMost, "the op of tile");
  check_range(depths, kMost, "the depth of tile");
  check_range(bytes, int64_t{1} << 48, "the bytes of tile");
  tiles_.reserve(num_tiles + 1);
  int64_t first_child = 0;
  for (size_t tile = 0; tile < num_tiles && first_child <= kMost; ++tile) {
    tiles_.push_back({nullptr, static_cast<uint32_t>(tile), static_cast<uint32_t>(first_child)});
    first_child += child_counts[tile];
  }
  if (first_child != static_cast<int64_t>(num_edges)) {
    throw std::invalid_argument("the numbers of children do not add up to the " + std::to_string(num_edges) + " children");
  }
  tiles_.push_back({nullptr, 0, static_cast<uint32_t>(first_child)});
  for (const int32_t child : children_) ++parents_[static_cast<size_t>(child)];
  for (size_t tile = 0; tile < num_tiles; ++tile) {
    if (parents_[tile] == 0) roots_.push_back(static_cast<int32_t>(tile));
  }
  if (!is_acyclic()) throw std::invalid_argument("the graph has a cycle: a tile waits for itself");
  turn_round(std::vector<uint8_t>(num_edges, 1), first_parent_, parent_tiles_);
  turn_round(is_read.empty() ? std::vector<uint8_t>(num_edges) : std::vector<uint8_t>(is_read.begin(), is_read.end()),
             first_read_, reads_);
}

// Of the arrows that are wanted, for each tile those that lead to it.
void VirtualGraph::turn_round(std::span<const uint8_t> is_wanted, std::vector<uint32_t>& first,
                              std::vector<uint32_t>& all) const {
  first.assign(num_tiles() + 1, 0);
  for (size_t edge = 0; edge < children_.size(); ++edge) {
    first[static_cast<size_t>(children_[edge]) + 1] += is_wanted[edge] != 0;
  }
  for (size_t tile = 0; tile < num_tiles(); ++tile) first[tile + 1] += first[tile];
  all.resize(first.back());
  std::vector<uint32_t> next(first.begin(), first.end() - 1);
  for (uint32_t tile = 0; tile < num_tiles(); ++tile) {
    for (uint32_t edge = tiles_[tile].first_child; edge < tiles_[tile + 1].first_child; ++edge) {
      if (is_wanted[edge] != 0) all[next[static_cast<size_t>(children_[edge])]++] = tile;
    }
  }
}

bool VirtualGraph::is_acyclic() const {
  std::vector<uint32_t> parents_left = parents_;
  std::vector<int32_t> order = roots_;
  for (size_t next = 0; next < order.size(); ++next) {
    const auto tile = static_cast<size_t>(order[next]);
    for (uint32_t i = tiles_[tile].first_child; i < tiles_[tile + 1].first_child; ++i) {
      if (--parents_left[static_cast<size_t>(children_[i])] == 0) order.push_back(children_[i]);
    }
  }
  return order.size() == num_tiles();
}

}  // namespace aspen
