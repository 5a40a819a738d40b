// What is launched on a GPU: tiles of one op in groups, a thread block a tile. One tile alone is done sooner than launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aspen_jax/engine/graph.h"

namespace aspen::cuda {

// Tiles of one op, whose boxes together are one box.
struct Launch {
  uint32_t op;
  uint32_t first_tile;  // in LaunchGraph::tiles
  uint32_t num_tiles;
  uint32_t first_box;  // in LaunchGraph::boxes
  int64_t cost;        // of its tiles, one after the other, in nanoseconds
};

struct LaunchGraph {
  std::vector<Launch> launches;        // in a topological order
  std::vector<uint32_t> tiles;         // the graph's tiles, launch by launch
  std::vector<int32_t> boxes;          // for each launch lo, then hi, each of the rank of its op's output
  std::vector<uint32_t> first_parent;  // CSR, num_launches + 1 entries; parents come earlier
  std::vector<uint32_t> parents;       // ascending
  std::vector<uint32_t> first_child;   // CSR, num_launches + 1 entries
  std::vector<uint32_t> children;      // ascending

  size_t size() const { return launches.size(); }
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

// Cuts the tiles of each op into as many groups of at least `fewest_tiles` as a bisection gives, or one where there are fewer. A
// group waits for all that its tiles wait for. Where that would make two groups wait for each other, each tile is a group.
LaunchGraph group_tiles(const Graph& graph, uint32_t fewest_tiles);

// For each launch those parents that no other parent waits for: waiting for them is waiting for all. Ascending.
std::vector<std::vector<uint32_t>> nearest_parents(const LaunchGraph& launches);

}  // namespace aspen::cuda
