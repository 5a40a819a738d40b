"""A run of a tile graph by more workers than there are cores: Algorithm 1 played on the measured times of its tiles."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from aspen_jax.graph.tilegraph import TileGraph

COLUMNS = 63
"""Columns of the Ready Pool, kColumns in aspen_jax/engine/policy.h."""


class _ReadyPool:
    """Rows of queues, one for each worker: the lowest column first, in it whoever came first."""

    def __init__(self, workers: int):
        self._rows: list[list[tuple[int, int, int]]] = [[] for _ in range(workers)]
        self._pushed = 0
        self.size = 0

    def push(self, row: int, column: int, tile: int) -> None:
        heapq.heappush(self._rows[row], (column, self._pushed, tile))
        self._pushed += 1
        self.size += 1

    def pop(self, worker: int) -> int:
        """From the worker's own row, otherwise from the others in a circle; the pool must not be empty."""
        row = next(row for row in (*self._rows[worker:], *self._rows[:worker]) if row)
        self.size -= 1
        return heapq.heappop(row)[2]


def simulated_span(graph: TileGraph, nanoseconds: Sequence[int] | np.ndarray, workers: int) -> int:
    """From the beginning of the first tile to the end of the last, by the engine's default policy.

    Each worker goes on with the first child that its tile made ready and leaves the others in its row of the Ready Pool. What is
    not in the tiles' times costs nothing: waking workers, looking for tiles, caches and memory that workers share.

    Args:
        graph: what is run.
        nanoseconds: how long each tile takes, [T].
        workers: how many DSEs.

    Returns:
        nanoseconds.
    """
    columns = (graph.ops[graph.tile_ops, 4] * COLUMNS // (graph.max_depth + 1)).tolist()
    ends = np.cumsum(graph.child_counts)
    children = [ids.tolist() for ids in np.split(graph.children, ends[:-1])] if graph.num_tiles else []
    parents_left = graph.parent_counts.tolist()
    durations = [int(time) for time in nanoseconds]
    pool = _ReadyPool(workers)
    roots = np.flatnonzero(graph.parent_counts == 0)
    for row, part in enumerate(np.array_split(roots, min(workers, len(roots)) or 1)):
        for tile in part.tolist():
            pool.push(row, columns[tile], tile)

    now = 0
    idle = list(range(workers))
    walking: list[tuple[int, int, int]] = []  # end, worker, tile
    while pool.size or walking:
        while pool.size and idle:
            worker = idle.pop(0)
            tile = pool.pop(worker)
            heapq.heappush(walking, (now + durations[tile], worker, tile))
        now, worker, tile = heapq.heappop(walking)
        kept = -1
        for child in children[tile]:
            parents_left[child] -= 1
            if parents_left[child]:
                continue
            if kept < 0:
                kept = child
            else:
                pool.push(worker, columns[child], child)
        if kept < 0:
            idle.append(worker)
        else:
            heapq.heappush(walking, (now + durations[kept], worker, kept))
    return now


def span(timeline: np.ndarray) -> int:
    """Nanoseconds from the beginning of the first tile to the end of the last, of what `TileGraph.timeline` gives."""
    return int(timeline[:, 2].max() - timeline[:, 1].min()) if len(timeline) else 0


def times_with_scheduling(timeline: np.ndarray) -> np.ndarray:
    """Nanoseconds from each tile's begin to the next one's, [T], of one worker's run: with what the worker did in between."""
    order = np.argsort(timeline[:, 1], kind="stable")
    begins = timeline[order, 1]
    result = np.empty(len(timeline), np.int64)
    result[order] = np.append(begins[1:], timeline[order[-1:], 2]) - begins
    return result
