"""The simulation of more workers than there are cores keeps to what holds for every greedy schedule."""

from __future__ import annotations

import numpy as np
import pytest

from aspen_jax.graph.dag import Dag
from aspen_jax.graph.tilegraph import TileGraph
from benchmarks.simulation import simulated_span, times_with_scheduling


def tiles(size, edges):
    """A graph of these edges, whose tiles are ops of their own: what the simulation reads of it."""
    parents, children = np.array(edges, np.int64).reshape(-1, 2).T
    dag = Dag.from_edges(size, parents, children)
    none = np.zeros(0, np.int64)
    ops = np.zeros((size, 5), np.int64)
    ops[:, 4] = dag.finish_times(np.ones(size, np.int64)) - 1
    graph = TileGraph(
        (), (), none, none, none, none, ops, none, none, np.arange(size), none, dag.child_counts, dag.children, none,
        workspace_bytes=0, max_depth=int(ops[:, 4].max(initial=0)),
    )  # fmt: skip
    return graph, dag


@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_no_worker_idles_while_a_tile_is_ready(workers):
    random = np.random.default_rng(workers)
    for size in (1, 30, 400):
        parents = random.integers(0, size, 3 * size)
        children = random.integers(0, size, 3 * size)
        forward = parents < children
        graph, dag = tiles(size, np.stack([parents[forward], children[forward]], axis=1))
        times = random.integers(1, 1000, size)
        work, critical = int(times.sum()), int(dag.finish_times(times).max())
        simulated = simulated_span(graph, times, workers)
        # Graham's bound: a greedy schedule is late by no more than the longest path.
        assert max(critical, work / workers) <= simulated <= work / workers + critical * (1 - 1 / workers)


def test_one_worker_takes_the_sum_and_a_chain_keeps_one_worker():
    graph, _ = tiles(5, [(i, i + 1) for i in range(4)])
    assert simulated_span(graph, [3, 1, 4, 1, 5], 1) == simulated_span(graph, [3, 1, 4, 1, 5], 8) == 14
    graph, _ = tiles(10, [])
    assert [simulated_span(graph, [7] * 10, workers) for workers in (1, 3, 10, 20)] == [70, 28, 7, 7]


def test_a_worker_keeps_the_first_child_and_others_take_shallow_tiles_first():
    # 0 makes 1 and 2 ready, 3 makes 4. Worker 0 walks on to 1, so the idle worker takes 2 from its row.
    graph, _ = tiles(5, [(0, 1), (0, 2), (3, 4)])
    assert simulated_span(graph, [10, 10, 10, 1, 1], 2) == 20
    # Worker 0 has the roots 0 and 1, worker 1 has 4 and 6. After 0 and 2, worker 0 takes 1 and not 3, which is deeper; worker 1
    # takes 3 from its row.
    graph, _ = tiles(7, [(0, 2), (0, 3), (1, 5)])
    assert simulated_span(graph, [1, 10, 1, 60, 3, 51, 1], 2) == 64


def test_times_of_tiles_reach_to_the_next_one():
    timeline = np.array([[0, 100, 110], [0, 150, 190], [0, 112, 148]])
    np.testing.assert_array_equal(times_with_scheduling(timeline), [12, 40, 38])
    assert times_with_scheduling(timeline[:0]).size == 0
