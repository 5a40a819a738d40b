// Algorithm 1 with nothing around it: counters, a stack of ready tiles, a call through a pointer.
#pragma once

#include <algorithm>
#include <vector>

#include "aspen_jax/engine/plan.h"

namespace aspen {

class PlainLoop {
 public:
  explicit PlainLoop(const Plan& plan) : plan_(plan), left_(plan.num_tiles()) {}

  size_t run() {
    const Graph& graph = plan_.graph();
    std::copy(graph.parents.begin(), graph.parents.end(), left_.begin());
    ready_.assign(plan_.roots().begin(), plan_.roots().end());
    size_t executed = 0;
    while (!ready_.empty()) {
      int32_t tile = ready_.back();
      ready_.pop_back();
      while (tile >= 0) {
        const PreparedOp& op = plan_.prepared()[graph.tile_ops[tile]];
        op.run({op.state.get(), nullptr, nullptr, plan_.tiles()[tile].box, nullptr, nullptr});
        ++executed;
        int32_t kept = -1;
        for (const int32_t child : graph.children_of(tile)) {
          if (--left_[child] != 0) continue;
          if (kept < 0) {
            kept = child;
          } else {
            ready_.push_back(child);
          }
        }
        tile = kept;
      }
    }
    return executed;
  }

 private:
  const Plan& plan_;
  std::vector<uint32_t> left_;
  std::vector<int32_t> ready_;
};

}  // namespace aspen
