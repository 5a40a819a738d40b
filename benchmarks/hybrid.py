"""Throughput of cores of two speeds, simulated (ASPEN, section 4.3, figure 9)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule import Costs, Cpu, Dmda, Machine, Policy, ReadyPool, simulate
from benchmarks import zoo
from benchmarks.bandwidth import with_bandwidth
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.picture import save_curves
from benchmarks.simulation import measured_graph
from benchmarks.zoo.model import Size


@benchmark
def hybrid(
    models: Models = ("resnet50", "bert-base"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 10,
    performance: int = 8,
    efficiency: int = 8,
    slower: float = 2.5,
    bandwidth: float = 76.8,
    json: File = None,
    picture: File = None,
) -> Run:
    """Simulated throughput on performance cores, then on efficiency cores as well: ASPEN's figure 9, without such a machine.

    A performance core takes the time that tiles take one worker of this machine. The engine's own virtual clock plays two
    schedulers. In Algorithm 1 whoever is idle takes the shallowest tile. The lab's Dmda sees which core is slow. Beside them
    stand the sum of the cores' speeds, and operators with a barrier behind each whose tiles are shared equally.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often the tiles are timed.
        performance: how many performance cores; they are used first.
        efficiency: how many efficiency cores.
        slower: how many times as long a tile takes one of these.
        bandwidth: GB/s of the memory; by default that of the paper's machine, with two channels of DDR5-4800.
        json: where to write the figures as well.
        picture: where to draw the curves, a PNG, PDF or SVG file.
    """
    if min(performance, efficiency) < 1:
        raise InputError(f"{performance} and {efficiency} cores; take 1 or more of each kind")
    if not (1 <= slower < float("inf") and 0 < bandwidth < float("inf")):
        raise InputError(f"cores {slower} times as slow on a memory of {bandwidth} GB/s; take 1 or more, and more than 0")
    curves = {}
    for name in models:
        measured = measured_graph(zoo.build(name, size), performance + efficiency, rounds)
        title = f"{name}, simulated: throughput in performance cores"
        table = Table(title, {"cores": "d", **dict.fromkeys((_SUM, *_SPANS), ".2f")})
        for count in range(1, performance + efficiency + 1):
            factors = np.array([1.0] * min(count, performance) + [slower] * max(count - performance, 0))
            times = with_bandwidth(measured.nanoseconds, measured.num_bytes, count, bandwidth * 1e9)
            # Seconds of a single performance core, so all curves count in its calls.
            spans = (float(measured.nanoseconds.sum()) / span(measured.graph, times, factors) for span in _SPANS.values())
            table.add(count, float((1 / factors).sum()), *spans)
        yield table
        for title in (_SUM, *_SPANS):
            curves[title if title == _SUM else f"{name}, {title}"] = [(row["cores"], row[title]) for row in table.rows]
    if picture is not None:
        title = f"Simulated: {performance} performance cores, then {efficiency} efficiency cores"
        save_curves(picture, title, "cores", "throughput in performance cores", curves)


def _scheduled(policy: Policy, graph: TileGraph, nanoseconds: np.ndarray, factors: np.ndarray) -> float:
    """Makespan of the engine's own scheduler on cores that take `factors` times as long."""
    speeds, counts = np.unique(factors, return_counts=True)
    machine = Machine([Cpu(int(count), f"cpu{number}") for number, count in enumerate(counts)])
    return simulate(graph, machine, Costs(nanoseconds[:, None] * speeds), policy).makespan


def _barriers(graph: TileGraph, nanoseconds: np.ndarray, factors: np.ndarray) -> float:
    """Sum over ops of the slowest core's time, where each gets the same number of neighbouring tiles."""
    total = 0.0
    for op in range(graph.num_ops):
        times = nanoseconds[graph.tiles_of(op)[0]]
        # A core fewer than there are tiles stays idle; the fast ones come first.
        shares = np.array_split(times, min(len(factors), len(times)))
        total += max((share.sum() * factor for share, factor in zip(shares, factors, strict=False)), default=0.0)
    return total


_SUM = "sum of the cores"
_SPANS: dict[str, Callable[[TileGraph, np.ndarray, np.ndarray], float]] = {
    "Algorithm 1": functools.partial(_scheduled, ReadyPool()),
    "Dmda": functools.partial(_scheduled, Dmda()),
    "equal shares and barriers": _barriers,
}
