"""Runs of a tile graph by more workers than there are cores: the engine's Algorithm 1 on the measured times of its tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule import Costs, Cpu, Machine, simulate


def simulated_span(graph: TileGraph, nanoseconds: Sequence[int] | np.ndarray, workers: int) -> int:
    """From the beginning of the first tile to the end of the last, by the engine's default policy.

    What is not in the tiles' times costs nothing: waking workers, looking for tiles, caches and memory that workers share.

    Args:
        graph: what is run.
        nanoseconds: how long each tile takes, [T].
        workers: how many DSEs.

    Returns:
        nanoseconds.
    """
    return simulate(graph, Machine([Cpu(workers)]), Costs(np.asarray(nanoseconds)[:, None])).makespan


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
