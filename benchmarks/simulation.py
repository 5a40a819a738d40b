"""Runs of a tile graph by more workers than there are cores: the engine's Algorithm 1 on the measured times of its tiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

import aspen_jax
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.random_array import random_array
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.schedule import Costs, Cpu, Machine, simulate
from aspen_jax.targets.cpu.target import CpuTarget
from benchmarks.bandwidth import memory_bytes
from benchmarks.zoo.model import Model


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredGraph:
    """A graph that was cut for some number of workers, and what its tiles take one worker of this machine.

    Attributes:
        graph: the largest part of the model where XLA keeps some.
        nanoseconds: of each tile, int64 [T], with what the worker did until the next one began.
        num_bytes: that each tile reads from memory, float64 [T].
    """

    graph: TileGraph
    nanoseconds: np.ndarray
    num_bytes: np.ndarray


def measured_graph(model: Model, workers: int, rounds: int) -> MeasuredGraph:
    """Cut a model for so many workers, its weights constants, and let one worker run it.

    Args:
        model: what is run.
        workers: how many the graph is for.
        rounds: how often it is run; of each tile the shortest time counts.
    """
    jaxpr = jax.make_jaxpr(functools.partial(model.apply, model.params))(*model.inputs)
    graph = max(
        (part.graph for part in compile_jaxpr(jaxpr, Options(target=CpuTarget.here(workers), chooses=False)).parts),
        key=lambda graph: graph.num_ops,
    )
    arrays = [random_array(value) for value in graph.program().inputs]
    before = aspen_jax.num_workers()
    try:
        aspen_jax.set_num_workers(1)
        times = [times_with_scheduling(graph.timeline(*arrays)) for _ in range(rounds)]
    finally:
        aspen_jax.set_num_workers(before)
    return MeasuredGraph(graph, np.min(times, axis=0), memory_bytes(graph))


def simulated_span(graph: TileGraph, nanoseconds: Sequence[int] | np.ndarray, workers: int) -> int:
    """The time from the beginning of the first tile to the end of the last, by the engine's default policy.

    What is not in the tiles' times costs nothing: waking workers, looking for tiles, caches and memory that workers share.

    Args:
        graph: what is run.
        nanoseconds: how long each tile takes, [T].
        workers: how many DSEs.

    Returns:
        nanoseconds.
    """
    return simulate(graph, Machine([Cpu(workers)]), Costs(np.asarray(nanoseconds)[:, None])).makespan


def times_with_scheduling(timeline: np.ndarray) -> np.ndarray:
    """Nanoseconds from each tile's begin to the next one's, [T], of one worker's run: with what the worker did in between.

    Args:
        timeline: as `TileGraph.timeline` gives it.
    """
    order = np.argsort(timeline[:, 1], kind="stable")
    begins = timeline[order, 1]
    result = np.empty(len(timeline), np.int64)
    result[order] = np.append(begins[1:], timeline[order[-1:], 2]) - begins
    return result
