// A walk along the arrows of a graph: all that Algorithm 1 reads and changes, whether tiles take real time or simulated time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy.h"

namespace aspen {

class Traversal;

// A tile as a DSE wants it. The children of tile t are children[first_child .. (next tile's) first_child).
struct PlannedTile {
  const int32_t* box;
  uint32_t op;
  uint32_t first_child;
};

// A tile's place in a queue of the Ready Pool. Part of the traversal, so that queueing allocates nothing.
struct Node {
  Node* next = nullptr;
  Traversal* traversal = nullptr;
};

class Traversal {
 public:
  // `tiles` has a sentinel, so that the last tile's children end somewhere. Both arrays must outlive the traversal.
  Traversal(std::span<const PlannedTile> tiles, const int32_t* children, size_t num_ops);
  Traversal(const Traversal&) = delete;
  Traversal& operator=(const Traversal&) = delete;

  std::span<const int32_t> children_of(uint32_t tile) const {
    return {children_ + tiles_[tile].first_child, children_ + tiles_[tile + 1].first_child};
  }
  // Atomic while several DSEs walk: see algorithm1.h.
  uint32_t& parents_left(uint32_t tile) { return parents_left_[tile]; }
  Node& node(uint32_t tile) { return nodes_[tile]; }
  uint32_t tile_of(const Node* node) const { return static_cast<uint32_t>(node - nodes_.data()); }
  int column_of(const Node* node) const { return columns_[tiles_[tile_of(node)].op]; }
  const Policy& policy() const { return *policy_; }

  // Where its tiles lie in the rows of the Ready Pool (run_order.h); written before the first of them is pushed.
  int slot() const { return slot_; }
  void set_slot(int slot) { slot_ = slot; }

 protected:
  ~Traversal() = default;

  // Begins again: `parents` of each tile, `depth` of an op by its number.
  template <typename Depth>
  void restart(const Policy& policy, std::span<const uint32_t> parents, const Depth& depth, int max_depth) noexcept {
    reset_counters(parents);
    if (policy_ == &policy) return;
    policy_ = &policy;
    for (size_t op = 0; op < columns_.size(); ++op) columns_[op] = column(policy, depth(op), max_depth);
  }

 private:
  static int column(const Policy& policy, int depth, int max_depth) noexcept;
  void reset_counters(std::span<const uint32_t> parents) noexcept;

  const PlannedTile* tiles_;
  const int32_t* children_;
  std::vector<uint32_t> parents_left_;
  std::vector<Node> nodes_;
  std::vector<int> columns_;  // of each op, by the policy
  const Policy* policy_ = nullptr;
  int slot_ = 0;
};

}  // namespace aspen
