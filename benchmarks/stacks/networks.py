"""Whole networks with and without stacks, and the share of the time in optimisable layers (BrainSlug, sections 5.2 to 5.4)."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.cost.timing import Timing, interleaved, speedup
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ops.stack import STACK
from aspen_jax.report.cores import share_cores
from benchmarks import zoo
from benchmarks.benchmark import check_agreement
from benchmarks.stacks.graphs import MOST_STEPS, graph_of, is_optimisable
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.parameters import draw, draw_inputs

ALONE, JOINED = "no stacks", "stacks"
_STEPS = {ALONE: 1, JOINED: MOST_STEPS}


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of a network at a batch.

    Attributes:
        name: of the network.
        batch: images a call.
        timings: without and with stacks; without alone where no stack is found, so that both are the same graph.
        optimisable: the share of the tiles' time that ops of optimisable layers alone take, without stacks.
        in_stacks: the share that stacks take, with them.
    """

    name: str
    batch: int
    timings: dict[str, Timing]
    optimisable: float
    in_stacks: float

    @property
    def speedup(self) -> float | None:
        """How many times as fast the network is with stacks; None where it has none."""
        return speedup(self.timings[ALONE], self.timings[JOINED]) if JOINED in self.timings else None


def measure(name: str, size: Size, rounds: int) -> Row:
    """Check that both give the same, then time them in turns.

    Raises:
        Disagreement: results differ.
    """
    workers = share_cores()
    network = zoo.describe(name, size)
    params, inputs = draw(network), draw_inputs(network)
    machine = Machine.here(workers)
    graphs = {side: graph_of(network, params, inputs, machine, steps, workers) for side, steps in _STEPS.items()}
    calls = {side: functools.partial(graph.run, *inputs) for side, graph in graphs.items()}
    check_agreement(name, calls)
    if graphs[ALONE] == graphs[JOINED]:
        del calls[JOINED]
    timings = interleaved(calls, rounds)
    optimisable = _share(graphs[ALONE], inputs, rounds, [is_optimisable(op) for op in graphs[ALONE].program().ops])
    in_stacks = 0.0
    if JOINED in calls:
        in_stacks = _share(graphs[JOINED], inputs, rounds, [op.family is STACK for op in graphs[JOINED].program().ops])
    return Row(name, size.batch, timings, optimisable, in_stacks)


def _share(graph: TileGraph, inputs: tuple[np.ndarray, ...], rounds: int, chosen: list[bool]) -> float:
    """The share of the time of all tiles, each at its fastest, that the chosen ops' tiles take."""
    lasted = np.min([np.diff(graph.timeline(*inputs)[:, 1:])[:, 0] for _ in range(rounds)], axis=0)
    tiles = [graph.tiles_of(number)[0] for number, is_chosen in enumerate(chosen) if is_chosen]
    return float(sum(lasted[numbers].sum() for numbers in tiles) / lasted.sum())
