"""Timelines of graphs for tests, made without the engine."""

from __future__ import annotations

import numpy as np

from aspen_jax.graph.tilegraph import TileGraph


def random_timeline(graph: TileGraph, seed: int, num_lanes: int, width: int = 1) -> np.ndarray:
    """Tiles in some order that their edges allow, each some time after its parents, on some lane.

    Args:
        graph: whose tiles.
        seed: of the randomness.
        num_lanes: how many lanes there are.
        width: how many tiles a lane runs at once.
    """
    rng = np.random.default_rng(seed)
    parents, children = graph.dag.edges()
    timeline = np.zeros((graph.num_tiles, 3), np.int64)
    free = np.full((num_lanes, width), 1_000)
    for tiles in graph.dag.levels:
        for tile in rng.permutation(tiles).tolist():
            lane, row = int(rng.integers(num_lanes)), int(rng.integers(width))
            ready = timeline[parents[children == tile], 2].max(initial=0)
            begin = max(int(ready), int(free[lane, row])) + int(rng.choice([0, 0, 1, 20]))
            end = begin + int(rng.choice([0, 1, 7, 30]))
            free[lane, row] = end
            timeline[tile] = lane, begin, end
    return timeline
