// A graph made ready to run: kernels resolved, ops prepared. Immutable, shared by all runs of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph.h"
#include "kernel.h"
#include "registry.h"
#include "traversal.h"

namespace aspen {

class RunState;
class RunStateCache;

// Where an op's input or output begins: `offset` bytes into an operand, a result or the workspace, which are numbered as in the
// graph. Kept apart from the views, which every run would otherwise bring into the caches to find these.
struct Place {
  int32_t buffer;
  int64_t offset;
};

class Plan {
 public:
  // `trusted`: the edges are known to order all tiles that share memory, so that none reads what none has written. Throws
  // GraphError where a kernel is unknown or refuses its op; the message names the op.
  Plan(Graph graph, const KernelRegistry& registry, bool trusted = false);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const Graph& graph() const { return graph_; }
  size_t num_operands() const { return graph_.operands.size(); }
  size_t num_results() const { return graph_.results.size(); }
  size_t num_tiles() const { return graph_.num_tiles(); }
  // Shape, dtype and size in bytes of what the call must be given and gives back.
  const Value& operand(size_t index) const { return graph_.values[graph_.operands[index]]; }
  const Value& result(size_t index) const { return graph_.values[graph_.results[index]]; }

  // Sum of the tiles' estimated costs in nanoseconds (saturating).
  int64_t total_cost() const { return total_cost_; }
  // Whether some tile may never end by itself.
  bool may_not_end() const { return may_not_end_; }
  // The largest scratch that a tile of this plan needs.
  size_t scratch_bytes() const { return scratch_bytes_; }
  // Where the ops' kept memory lies behind the workspace, for those that have some, and where it ends.
  struct Kept {
    uint32_t op;
    size_t begin;
  };
  const std::vector<Kept>& kept() const { return kept_; }
  size_t memory_bytes() const { return memory_bytes_; }

  // "tile 17 [0:1, 8:16] of op 'conv1'", for messages.
  std::string describe_tile(size_t tile) const;

  const std::vector<PreparedOp>& prepared() const { return prepared_; }
  const std::vector<PlannedTile>& tiles() const { return tiles_; }
  const std::vector<int32_t>& roots() const { return roots_; }
  // Places of the inputs of all ops, in the graph's order, of each op's output, and of the ops' further outputs.
  const std::vector<Place>& inputs() const { return inputs_; }
  const std::vector<Place>& outputs() const { return outputs_; }
  const std::vector<Place>& further() const { return further_; }
  // Results, by number, that a run clears first: those that ops read too, unless the graph is trusted.
  const std::vector<uint32_t>& results_to_clear() const { return results_to_clear_; }
  RunStateCache& run_states() const { return *run_states_; }

 private:
  Graph graph_;
  std::vector<PreparedOp> prepared_;
  std::vector<PlannedTile> tiles_;  // and a sentinel: see Traversal
  std::vector<int32_t> roots_;
  std::vector<Place> inputs_, outputs_, further_;
  std::vector<uint32_t> results_to_clear_;
  int64_t total_cost_ = 0;
  bool may_not_end_ = false;
  size_t scratch_bytes_ = 0;
  std::vector<Kept> kept_;
  size_t memory_bytes_ = 0;
  std::unique_ptr<RunStateCache> run_states_;
};

}  // namespace aspen
