#include "launch_graph.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace aspen::cuda {
namespace {

using Tiles = std::span<uint32_t>;

struct Groups {
  std::vector<uint32_t> tiles;
  std::vector<uint32_t> ends;  // of each group, in `tiles`

  void add(std::span<const uint32_t> group) {
    tiles.insert(tiles.end(), group.begin(), group.end());
    ends.push_back(static_cast<uint32_t>(tiles.size()));
  }
};

// Sorts tiles by where they begin along an axis and returns how many of them come before the plane that halves them best, of
// those that cut no tile and leave `fewest` tiles on either side; 0 if there is none.
size_t halve(const Graph& graph, Tiles tiles, size_t axis, size_t rank, size_t fewest) {
  const auto lo = [&](uint32_t tile) { return graph.box_of(tile)[axis]; };
  const auto hi = [&](uint32_t tile) { return graph.box_of(tile)[rank + axis]; };
  std::ranges::sort(tiles, {}, [&](uint32_t tile) { return std::pair(lo(tile), tile); });
  const auto distance = [&](size_t count) {
    return std::abs(static_cast<int64_t>(tiles.size()) - 2 * static_cast<int64_t>(count));
  };
  size_t best = 0;
  int32_t reached = hi(tiles[0]);
  for (size_t count = 1; count < tiles.size(); ++count) {
    const bool is_plane = reached <= lo(tiles[count]);
    reached = std::max(reached, hi(tiles[count]));
    if (!is_plane || std::min(count, tiles.size() - count) < fewest) continue;
    if (best == 0 || distance(count) < distance(best)) best = count;
  }
  return best;
}

// Outer axes are cut first, so that groups follow each other in memory. The tiles of an op cover a box, and planes cut boxes into
// boxes, so each group covers one.
void bisect(const Graph& graph, Tiles tiles, size_t fewest, Groups& groups) {
  const size_t rank = graph.box_of(tiles[0]).size() / 2;
  for (size_t axis = 0; axis < rank && tiles.size() >= 2 * fewest; ++axis) {
    if (const size_t count = halve(graph, tiles, axis, rank, fewest)) {
      bisect(graph, tiles.first(count), fewest, groups);
      bisect(graph, tiles.subspan(count), fewest, groups);
      return;
    }
  }
  std::ranges::sort(tiles);
  groups.add(tiles);
}

std::vector<std::vector<uint32_t>> tiles_of_ops(const Graph& graph) {
  std::vector<std::vector<uint32_t>> of_op(graph.ops.size());
  for (size_t tile = 0; tile < graph.num_tiles(); ++tile) of_op[graph.tile_ops[tile]].push_back(static_cast<uint32_t>(tile));
  return of_op;
}

void check_launched_with(const std::vector<std::vector<uint32_t>>& of_op, std::span<const int32_t> launched_with) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument(what + "; trace the function again"); };
  if (launched_with.size() != of_op.size()) {
    refuse("there are launches for " + std::to_string(launched_with.size()) + " ops, but the graph has " +
           std::to_string(of_op.size()));
  }
  for (size_t op = 0; op < of_op.size(); ++op) {
    const auto first = static_cast<size_t>(launched_with[op]);  // a negative one becomes too large
    if (first > op || launched_with[first] != launched_with[op] || of_op[first].size() != of_op[op].size()) {
      refuse("op " + std::to_string(op) + " cannot be launched with op " + std::to_string(launched_with[op]));
    }
  }
}

Groups groups_of_ops(const Graph& graph, size_t fewest, std::span<const int32_t> launched_with) {
  std::vector<std::vector<uint32_t>> tiles = tiles_of_ops(graph);
  std::vector<bool> is_alone(tiles.size(), true);
  if (!launched_with.empty()) check_launched_with(tiles, launched_with);
  for (size_t op = 0; op < launched_with.size(); ++op) {
    const auto first = static_cast<size_t>(launched_with[op]);
    if (first == op) continue;
    is_alone[first] = false;
    tiles[first].insert(tiles[first].end(), tiles[op].begin(), tiles[op].end());
    tiles[op].clear();
  }
  Groups groups;
  for (size_t op = 0; op < tiles.size(); ++op) {
    if (tiles[op].empty()) continue;
    if (is_alone[op]) {
      bisect(graph, tiles[op], fewest, groups);
    } else {
      groups.add(tiles[op]);
    }
  }
  return groups;
}

Groups single_tiles(const Graph& graph) {
  Groups groups{std::vector<uint32_t>(graph.num_tiles()), std::vector<uint32_t>(graph.num_tiles())};
  std::iota(groups.tiles.begin(), groups.tiles.end(), 0u);
  std::iota(groups.ends.begin(), groups.ends.end(), 1u);
  return groups;
}

// Edges between groups, each once, ascending.
std::vector<std::pair<uint32_t, uint32_t>> edges_between(const Graph& graph, const std::vector<uint32_t>& group_of_tile) {
  std::vector<std::pair<uint32_t, uint32_t>> edges;
  for (size_t tile = 0; tile < graph.num_tiles(); ++tile) {
    const uint32_t from = group_of_tile[tile];
    const size_t already = edges.size();
    for (const int32_t child : graph.children_of(tile)) {
      const uint32_t to = group_of_tile[child];
      if (edges.size() == already || edges.back().second != to) edges.emplace_back(from, to);
    }
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

void to_csr(size_t size, const std::vector<std::pair<uint32_t, uint32_t>>& edges, std::vector<uint32_t>& first,
            std::vector<uint32_t>& targets) {
  first.assign(size + 1, 0);
  for (const auto& [from, to] : edges) {
    ++first[from + 1];
    targets.push_back(to);
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
}

// Groups by depth of their op, then as they come, each after all it waits for. Nothing if groups wait for each other.
std::optional<std::vector<uint32_t>> order_of(const std::vector<int32_t>& depths,
                                              const std::vector<std::pair<uint32_t, uint32_t>>& edges) {
  const size_t size = depths.size();
  std::vector<uint32_t> first, children, waits(size);
  to_csr(size, edges, first, children);
  for (const uint32_t child : children) ++waits[child];
  using Entry = std::pair<int32_t, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (uint32_t group = 0; group < size; ++group) {
    if (waits[group] == 0) ready.emplace(depths[group], group);
  }
  std::vector<uint32_t> order;
  while (!ready.empty()) {
    const uint32_t group = ready.top().second;
    ready.pop();
    order.push_back(group);
    for (uint32_t i = first[group]; i < first[group + 1]; ++i) {
      if (--waits[children[i]] == 0) ready.emplace(depths[children[i]], children[i]);
    }
  }
  if (order.size() < size) return std::nullopt;
  return order;
}

void add_saturated(int64_t& sum, int64_t cost) {
  if (__builtin_add_overflow(sum, cost, &sum)) sum = std::numeric_limits<int64_t>::max();
}

std::optional<LaunchGraph> ordered(const Graph& graph, const Groups& groups) {
  std::vector<uint32_t> group_of_tile(graph.num_tiles());
  std::vector<int32_t> depths;
  for (uint32_t group = 0, tile = 0; group < groups.ends.size(); ++group) {
    depths.push_back(graph.ops[graph.tile_ops[groups.tiles[tile]]].depth);
    for (; tile < groups.ends[group]; ++tile) group_of_tile[groups.tiles[tile]] = group;
  }
  auto edges = edges_between(graph, group_of_tile);
  const auto order = order_of(depths, edges);
  if (!order) return std::nullopt;

  LaunchGraph result;
  std::vector<uint32_t> place(order->size());
  for (const uint32_t group : *order) {
    place[group] = static_cast<uint32_t>(result.size());
    const uint32_t begin = group == 0 ? 0 : groups.ends[group - 1];
    const auto tiles = std::span(groups.tiles).subspan(begin, groups.ends[group] - begin);
    const auto op_of = [&](uint32_t tile) { return static_cast<uint32_t>(graph.tile_ops[tile]); };
    Launch launch{op_of(tiles[0]),
                  static_cast<uint32_t>(result.ops.size()),
                  0,
                  static_cast<uint32_t>(result.tiles.size()),
                  static_cast<uint32_t>(tiles.size()),
                  0};
    result.tiles.insert(result.tiles.end(), tiles.begin(), tiles.end());
    for (const uint32_t tile : tiles) {
      if (launch.num_ops == 0 || result.ops.back() != op_of(tile)) {
        result.ops.push_back(op_of(tile));
        ++launch.num_ops;
      }
      add_saturated(launch.cost, graph.costs[tile]);
    }
    result.launches.push_back(launch);
  }
  for (auto& [from, to] : edges) std::tie(from, to) = std::pair(place[from], place[to]);
  std::ranges::sort(edges);
  to_csr(result.size(), edges, result.first_child, result.children);
  for (auto& [from, to] : edges) std::swap(from, to);
  std::ranges::sort(edges);
  to_csr(result.size(), edges, result.first_parent, result.parents);
  return result;
}

}  // namespace

LaunchGraph group_tiles(const Graph& graph, uint32_t fewest_tiles, std::span<const int32_t> launched_with) {
  if (auto grouped = ordered(graph, groups_of_ops(graph, std::max(fewest_tiles, 1u), launched_with))) return *std::move(grouped);
  // The reader of graphs has seen that tiles do not wait for each other.
  return *ordered(graph, single_tiles(graph));
}

std::vector<std::vector<uint32_t>> nearest_parents(const LaunchGraph& launches) {
  // A row of bits for each launch says which ones come before it. Where they would take too much memory all parents stay: that is
  // right too, only longer.
  constexpr size_t kMostBits = size_t{1} << 31;
  const size_t size = launches.size(), words = (size + 63) / 64;
  const bool reduces = size * words * 64 <= kMostBits;
  std::vector<uint64_t> earlier(reduces ? size * words : 0);
  const auto row = [&](size_t launch) { return std::span(earlier).subspan(launch * words, words); };
  std::vector<std::vector<uint32_t>> nearest(size);
  for (size_t launch = 0; launch < size; ++launch) {
    const auto parents = launches.parents_of(launch);
    if (!reduces) {
      nearest[launch].assign(parents.begin(), parents.end());
      continue;
    }
    // Parents come in a topological order, so what implies a parent comes after it.
    const auto own = row(launch);
    for (size_t i = parents.size(); i-- > 0;) {
      const uint32_t parent = parents[i];
      if (own[parent / 64] >> parent % 64 & 1) continue;
      nearest[launch].push_back(parent);
      own[parent / 64] |= uint64_t{1} << parent % 64;
      const auto before = row(parent);
      for (size_t word = 0; word < words; ++word) own[word] |= before[word];
    }
    std::ranges::reverse(nearest[launch]);
  }
  return nearest;
}

}  // namespace aspen::cuda
