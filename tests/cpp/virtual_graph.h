// What simulations read of a graph, and the simplest machine.
#pragma once

#include <cstdint>
#include <vector>

#include "aspen_jax/engine/graph.h"
#include "aspen_jax/engine/virtual_time.h"

namespace aspen::testing {

inline VirtualGraph virtual_graph(const Graph& graph, const std::vector<int64_t>& bytes = {},
                                  const std::vector<uint8_t>& is_read = {}) {
  std::vector<int64_t> child_counts, depths;
  for (size_t tile = 0; tile < graph.num_tiles(); ++tile) {
    child_counts.push_back(static_cast<int64_t>(graph.first_child[tile + 1] - graph.first_child[tile]));
  }
  for (const int32_t op : graph.tile_ops) depths.push_back(graph.ops[op].depth);
  return {child_counts,
          std::vector<int64_t>(graph.children.begin(), graph.children.end()),
          std::vector<int64_t>(graph.tile_ops.begin(), graph.tile_ops.end()),
          depths,
          bytes,
          is_read};
}

// A machine of one resource in one memory.
inline VirtualMachine lanes(int count) { return VirtualMachine({count}, {0}, {{}}); }

}  // namespace aspen::testing
