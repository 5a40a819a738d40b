// What is launched on a GPU: tiles of an op in groups, a thread block a tile. One tile alone is done sooner than launched. Some
// launches hold several ops that do not wait for each other: horizontal fusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aspen_jax/engine/graph.h"

namespace aspen::cuda {

// Tiles of one op, whose boxes together are one box, or all tiles of several ops.
struct Launch {
  uint32_t op;          // the first one
  uint32_t first_op;    // in LaunchGraph::ops
  uint32_t num_ops;     // of equally many tiles
  uint32_t first_tile;  // in LaunchGraph::tiles
  uint32_t num_tiles;   // of all its ops
  int64_t cost;         // of its tiles, one after the other, in nanoseconds
};

struct LaunchGraph {
  std::vector<Launch> launches;        // in a topological order
  std::vector<uint32_t> ops;           // launch by launch, ascending; an op is in each launch of its tiles
  std::vector<uint32_t> tiles;         // the graph's tiles, launch by launch, op by op
  std::vector<uint32_t> first_parent;  // CSR, num_launches + 1 entries; parents come earlier
  std::vector<uint32_t> parents;       // ascending
  std::vector<uint32_t> first_child;   // CSR, num_launches + 1 entries
  std::vector<uint32_t> children;      // ascending

  size_t size() const { return launches.size(); }
  std::span<const uint32_t> ops_of(size_t launch) const {
    return std::span(ops).subspan(launches[launch].first_op, launches[launch].num_ops);
  }
  std::span<const uint32_t> tiles_of(size_t launch) const {
    return std::span(tiles).subspan(launches[launch].first_tile, launches[launch].num_tiles);
  }
  std::span<const uint32_t> parents_of(size_t launch) const {
    return std::span(parents).subspan(first_parent[launch], first_parent[launch + 1] - first_parent[launch]);
  }
  std::span<const uint32_t> children_of(size_t launch) const {
    return std::span(children).subspan(first_child[launch], first_child[launch + 1] - first_child[launch]);
  }
};

// What executors pass to `group_tiles`: as many thread blocks as an H100 holds at once. Smaller launches overlap with others,
// which does not make up for their number: with 16 networks of batch 1 took 1.1 to 1.8 times as long there
// (docs/results/h100.md).
inline constexpr uint32_t kFewestTiles = 264;

// Cuts the tiles of each op into as many groups of at least `fewest_tiles` as a bisection gives, or one where there are fewer.
// Ops that are launched together are one group. A group waits for all that its tiles wait for. Where that would make two groups
// wait for each other, each tile is a group. `launched_with` has for each op the first of those that are launched with it, which
// has as many tiles; where it is empty all are alone. Throws std::invalid_argument where it cannot be the graph's.
LaunchGraph group_tiles(const Graph& graph, uint32_t fewest_tiles, std::span<const int32_t> launched_with = {});

// For each launch those parents that no other parent waits for: waiting for them is waiting for all. Ascending.
std::vector<std::vector<uint32_t>> nearest_parents(const LaunchGraph& launches);

}  // namespace aspen::cuda
