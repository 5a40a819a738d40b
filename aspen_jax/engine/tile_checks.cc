#include "tile_checks.h"

#include <algorithm>
#include <string>
#include <utility>

namespace aspen {
namespace {

// A tiling by merging is a grid, or a grid a row, and has far fewer cells than this for each tile. The bound keeps the check
// linear in the size of the graph.
constexpr size_t kCellsPerTile = 256;

// The output cut at every coordinate where some tile begins or ends. No box border runs through a cell, so painting a cell of
// each box once paints its elements once.
class CellGrid {
 public:
  CellGrid(const Graph& graph, std::span<const int32_t> tiles, int rank) : rank_(rank) {
    size_t cells = 1;
    for (int d = 0; d < rank; ++d) {
      auto& cuts = cuts_[d];
      for (const int32_t tile : tiles) {
        const auto box = graph.box_of(tile);
        // Neighbours in the list often agree in a dimension; this keeps the list to sort short.
        if (cuts.empty() || cuts.end()[-2] != box[d] || cuts.back() != box[rank + d]) {
          cuts.push_back(box[d]);
          cuts.push_back(box[rank + d]);
        }
      }
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      if (cuts.size() - 1 > kCellsPerTile * tiles.size() / cells) {
        throw GraphError("the tiles are too irregular: their borders cut the output into more than " +
                         std::to_string(kCellsPerTile) + " cells a tile");
      }
      cells *= cuts.size() - 1;
    }
    painted_.resize(cells);
  }

  // Whether the tiles reach both ends of every dimension.
  bool reaches(const int64_t* shape) const {
    for (int d = 0; d < rank_; ++d) {
      if (cuts_[d].front() != 0 || cuts_[d].back() != shape[d]) return false;
    }
    return true;
  }

  // False if some cell of the box is painted already.
  bool paint(std::span<const int32_t> box) {
    size_t lo[kMaxRank] = {}, hi[kMaxRank] = {};
    for (int d = 0; d < rank_; ++d) {
      lo[d] = index_of(d, box[d]);
      hi[d] = index_of(d, box[rank_ + d]);
    }
    return paint_from(0, 0, lo, hi);
  }

  bool all_painted() const { return std::find(painted_.begin(), painted_.end(), 0) == painted_.end(); }

 private:
  size_t index_of(int d, int32_t cut) const {
    return static_cast<size_t>(std::lower_bound(cuts_[d].begin(), cuts_[d].end(), cut) - cuts_[d].begin());
  }

  bool paint_from(int d, size_t cell, const size_t* lo, const size_t* hi) {
    if (d == rank_) return !std::exchange(painted_[cell], 1);
    for (size_t i = lo[d]; i < hi[d]; ++i) {
      if (!paint_from(d + 1, cell * (cuts_[d].size() - 1) + i, lo, hi)) return false;
    }
    return true;
  }

  int rank_;
  std::vector<int32_t> cuts_[kMaxRank];
  std::vector<char> painted_;
};

std::string name_of(const Graph& graph, size_t op) { return "op '" + graph.op_names[op] + "'"; }

}  // namespace

void check_tiles_cover_outputs(const Graph& graph) {
  // The tiles of each op, which need not be adjacent: a counting sort.
  std::vector<size_t> first(graph.ops.size() + 1);
  for (const int32_t op : graph.tile_ops) ++first[op + 1];
  for (size_t op = 0; op < graph.ops.size(); ++op) first[op + 1] += first[op];
  std::vector<int32_t> tiles(graph.num_tiles());
  auto next = first;
  for (size_t tile = 0; tile < graph.num_tiles(); ++tile) tiles[next[graph.tile_ops[tile]]++] = static_cast<int32_t>(tile);

  for (size_t op = 0; op < graph.ops.size(); ++op) {
    const Value& output = graph.values[graph.ops[op].output];
    const auto mine = std::span(tiles).subspan(first[op], first[op + 1] - first[op]);
    // A tile of an empty output has been refused: no box that is not empty lies inside.
    if (output.bytes == 0) continue;
    if (mine.empty()) throw GraphError(name_of(graph, op) + " has no tiles");
    CellGrid grid(graph, mine, output.dense.rank);
    for (const int32_t tile : mine) {
      if (!grid.paint(graph.box_of(tile))) {
        throw GraphError("tile " + std::to_string(tile) + " of " + name_of(graph, op) +
                         " writes elements that another tile writes too");
      }
    }
    if (!grid.reaches(output.dense.shape) || !grid.all_painted()) {
      throw GraphError("the tiles of " + name_of(graph, op) + " leave elements of its output unwritten");
    }
  }
}

void check_acyclic(const Graph& graph) {
  auto waiting_for = graph.parents;
  std::vector<int32_t> ready;
  ready.reserve(graph.num_tiles());
  for (size_t tile = 0; tile < graph.num_tiles(); ++tile) {
    if (waiting_for[tile] == 0) ready.push_back(static_cast<int32_t>(tile));
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    for (const int32_t child : graph.children_of(ready[i])) {
      if (--waiting_for[child] == 0) ready.push_back(child);
    }
  }
  if (ready.size() == graph.num_tiles()) return;
  const auto stuck = std::find_if(waiting_for.begin(), waiting_for.end(), [](uint32_t parents) { return parents != 0; });
  const auto tile = static_cast<size_t>(stuck - waiting_for.begin());
  throw GraphError("tile " + std::to_string(tile) + " of " + name_of(graph, graph.tile_ops[tile]) +
                   " waits for itself: the tile graph has a cycle");
}

}  // namespace aspen
