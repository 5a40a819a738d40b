// What the tiles of a graph must keep for its results to be right whatever the order of execution.
#pragma once

#include "graph.h"

namespace aspen {

// Each element of each op's output lies in exactly one tile. Boxes are known to lie inside their output. Throws GraphError.
void check_tiles_cover_outputs(const Graph& graph);

// Tiles do not wait for each other in a circle. Throws GraphError.
void check_acyclic(const Graph& graph);

}  // namespace aspen
