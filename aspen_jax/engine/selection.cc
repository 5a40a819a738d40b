#include "selection.h"

#include <limits>
#include <stdexcept>
#include <string>

namespace aspen {

Selection::Selection(const Plan& plan, std::span<const uint8_t> is_chosen) : parents(plan.num_tiles()) {
  const Graph& graph = plan.graph();
  if (is_chosen.size() != plan.num_tiles()) {
    throw std::invalid_argument("the graph has " + std::to_string(plan.num_tiles()) + " tiles, the choice of tiles " +
                                std::to_string(is_chosen.size()) + " bytes; give one for each tile");
  }
  for (size_t tile = 0; tile < is_chosen.size(); ++tile) {
    if (is_chosen[tile] == 0) continue;
    ++num_tiles;
    if (__builtin_add_overflow(cost, graph.costs[tile], &cost)) cost = std::numeric_limits<int64_t>::max();
    for (const int32_t id : graph.children_of(tile)) {
      const auto child = static_cast<size_t>(id);
      // A tile that is left out has no parents left, so that counting it down never reaches zero: see algorithm1.h.
      if (is_chosen[child] != 0) ++parents[child];
    }
  }
  for (size_t tile = 0; tile < is_chosen.size(); ++tile) {
    if (is_chosen[tile] != 0 && parents[tile] == 0) roots.push_back(static_cast<int32_t>(tile));
  }
}

}  // namespace aspen
