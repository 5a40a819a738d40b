// Some tiles of a plan: what a run executes where the values of all others are there already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan.h"

namespace aspen {

struct Selection {
  // Any choice of tiles is sound: edges from tiles that are left out count as satisfied, so the chosen ones still form an acyclic
  // graph, and each of them is reached from its roots. Throws std::invalid_argument unless there is a byte for each tile.
  Selection(const Plan& plan, std::span<const uint8_t> is_chosen);

  std::vector<uint32_t> parents;  // of each chosen tile, how many chosen ones it waits for; nobody becomes ready by other entries
  std::vector<int32_t> roots;
  size_t num_tiles = 0;
  int64_t cost = 0;  // as Plan::total_cost
};

}  // namespace aspen
