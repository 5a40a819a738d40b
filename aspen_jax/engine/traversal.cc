#include "traversal.h"

#include <algorithm>

namespace aspen {

Traversal::Traversal(std::span<const PlannedTile> tiles, const int32_t* children, size_t num_ops)
    : tiles_(tiles.data()),
      children_(children),
      parents_left_(tiles.size() - 1),
      nodes_(tiles.size() - 1, Node{nullptr, this}),
      columns_(num_ops) {}

int Traversal::column(const Policy& policy, int depth, int max_depth) noexcept {
  return std::clamp(policy.column(depth, max_depth), 0, kColumns - 1);
}

void Traversal::reset_counters(std::span<const uint32_t> parents) noexcept {
  std::copy(parents.begin(), parents.end(), parents_left_.begin());
}

}  // namespace aspen
