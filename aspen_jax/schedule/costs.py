"""What tiles cost on each resource: measured, or made up for an experiment."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from aspen_jax import _engine, forks
from aspen_jax.errors import InputError
from aspen_jax.files import read_text
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Value
from aspen_jax.ir.random_array import random_array
from aspen_jax.runtime import num_workers, set_num_workers
from aspen_jax.schedule.machine import Fake, Gpu, Machine

QUANTILE = 0.25
"""Of the samples of a class. A disturbed run is not believed so: in such a one ResNet-50's tiles summed to 224 ms, not 137."""


@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """Nanoseconds of each tile on each resource.

    Attributes:
        ns: float64 [tiles, resources]; inf where a resource has no kernel for a tile.
        samples: int64 [tiles, resources], how many measurements stand behind each; 0: none, it was given.
        spread: float64 [tiles, resources], half the distance between their quartiles as a share of the median.

    Raises:
        InputError: a time is negative or NaN, or the arrays have other shapes.
    """

    ns: np.ndarray
    samples: np.ndarray
    spread: np.ndarray

    def __init__(self, ns: Any, samples: Any = None, spread: Any = None):
        ns = np.array(ns, np.float64)
        if ns.ndim != 2:
            raise InputError(f"costs have shape {list(ns.shape)}; they need a row for each tile and a column for each resource")
        if not (ns >= 0).all():
            tile, resource = np.argwhere(~(ns >= 0))[0]
            raise InputError(f"tile {tile} costs {ns[tile, resource]} ns on resource {resource}; a cost is 0 or more, or inf")
        object.__setattr__(self, "ns", ns)
        for name, given, dtype in (("samples", samples, np.int64), ("spread", spread, np.float64)):
            array = np.zeros(ns.shape, dtype) if given is None else np.array(given, dtype)
            if array.shape != ns.shape:
                raise InputError(f"{name} of costs have shape {list(array.shape)} where the times have {list(ns.shape)}")
            object.__setattr__(self, name, array)

    @property
    def mean_ns(self) -> np.ndarray:
        """The mean over the resources that have a kernel, float64 [tiles]."""
        known = np.isfinite(self.ns)
        return np.where(known, self.ns, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)

    @forks.cached_property
    def virtual(self) -> np.ndarray:
        """The costs as the engine's clock takes them: int64, `_engine.NEVER` for inf."""
        return np.where(self.ns < 2.0**61, self.ns, 0).round().astype(np.int64) + np.where(self.ns < 2.0**61, 0, _engine.NEVER)

    def on(self, factors: Sequence[float]) -> Costs:
        """Costs on resources that take `factors` times as long as the first one, a column for each.

        Raises:
            InputError: a factor is negative or NaN.
        """
        return Costs(self.ns[:, :1] * np.asarray(factors, np.float64)[None])

    def save(self, path: str | os.PathLike[str], graph: TileGraph, machine: Machine) -> None:
        """Write a CSV file: a row for each tile and resource.

        Raises:
            InputError: the costs are not those of this graph and machine.
            OSError: the file cannot be written.
        """
        check_fit(graph, machine, self)
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["tile", "op", "resource", "ns", "samples", "spread"])
            for tile, op in enumerate(graph.tile_ops.tolist()):
                for number, resource in enumerate(machine.resources):
                    at = tile, number
                    cells = [float(self.ns[at]), int(self.samples[at]), float(self.spread[at])]
                    writer.writerow([tile, graph.op_names[op], resource.name, *cells])

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: TileGraph, machine: Machine) -> Costs:
        """Read what `save` wrote; what the file does not name has no kernel.

        Raises:
            InputError: the file holds no costs, or those of another graph or machine.
            OSError: it cannot be read.
        """
        shape = (graph.num_tiles, len(machine.resources))
        ns, samples, spread = np.full(shape, np.inf), np.zeros(shape, np.int64), np.zeros(shape)
        try:
            for row in csv.DictReader(io.StringIO(read_text(path), newline="")):
                at = int(row["tile"]), machine.index(row["resource"])
                if not 0 <= at[0] < graph.num_tiles:
                    raise ValueError(f"it names tile {at[0]} of {graph.num_tiles}")
                ns[at], samples[at], spread[at] = float(row["ns"]), int(row["samples"]), float(row["spread"])
            return cls(ns, samples, spread)
        except (ValueError, TypeError, KeyError, csv.Error, InputError) as error:
            raise InputError(f"{os.fspath(path)} holds no costs of this graph and machine: {error!s}") from None


def check_fit(graph: TileGraph, machine: Machine, costs: Costs) -> None:
    """Check that costs are of a graph's tiles on a machine's resources.

    Raises:
        InputError: they are not.
    """
    wanted = (graph.num_tiles, len(machine.resources))
    if costs.ns.shape != wanted:
        raise InputError(f"the costs are of {costs.ns.shape[0]} tiles on {costs.ns.shape[1]} resources; needed are {wanted}")


def measure(graph: TileGraph, machine: Machine | None = None, rounds: int = 20, inputs: Sequence[Any] | None = None) -> Costs:
    """Time a graph's tiles on the workers of this process, with as many busy as the machine has lanes.

    Tiles that do the same, by kernel, parameters and shape of box, are one class, which costs a low quantile of its samples.

    Args:
        graph: what is run.
        machine: of `Cpu` resources, which all get the same costs, and of `Fake`, which get a multiple; this process's workers if
            None.
        rounds: how often it is run; one more run goes before, which is not counted.
        inputs: what `graph.run` takes; small random numbers if None.

    Raises:
        InputError: the machine has a `Gpu`, the inputs do not fit, or there are no rounds.
        EngineError: a run failed.
    """
    machine = Machine.here() if machine is None else machine
    if any(isinstance(resource, Gpu) for resource in machine.resources):
        raise InputError(
            "only CPU workers can be measured here; give the costs of other resources yourself, as Costs(array) or by "
            "Costs.on(factors)"
        )
    if rounds < 1:
        raise InputError(f"{rounds} rounds; take 1 or more")
    arrays = random_inputs(graph) if inputs is None else inputs
    before = num_workers()
    try:
        set_num_workers(len(machine.lane_resources))
        timelines = np.stack([graph.timeline(*arrays) for _ in range(rounds + 1)][1:])
    finally:
        set_num_workers(before)
    lasts = (timelines[:, :, 2] - timelines[:, :, 1]).astype(np.float64)
    classes = tile_classes(graph)
    ns, samples, spread = np.zeros(graph.num_tiles), np.zeros(graph.num_tiles, np.int64), np.zeros(graph.num_tiles)
    order = np.argsort(classes, kind="stable")
    for tiles in np.split(order, np.flatnonzero(np.diff(classes[order])) + 1):
        if not tiles.size:
            continue
        low, first, middle, third = np.quantile(lasts[:, tiles], [QUANTILE, 0.25, 0.5, 0.75])
        ns[tiles], samples[tiles] = low, rounds * len(tiles)
        spread[tiles] = (third - first) / 2 / max(middle, 1.0)
    columns = (np.repeat(array[:, None], len(machine.resources), axis=1) for array in (samples, spread))
    return Costs(ns[:, None] * _repeats(machine), *columns)


def estimated(graph: TileGraph, machine: Machine) -> Costs:
    """The graph's own estimates, on every resource; a `Fake` takes a multiple."""
    return Costs(graph.costs[:, None] * _repeats(machine))


def _repeats(machine: Machine) -> np.ndarray:
    return np.array([resource.repeat if isinstance(resource, Fake) else 1 for resource in machine.resources])


def tile_classes(graph: TileGraph) -> np.ndarray:
    """A number for each tile, equal for those that do the same: by kernel, parameters, views of inputs and shape of box."""
    classes: dict[tuple[Any, ...], int] = {}
    result = np.zeros(graph.num_tiles, np.int64)
    for number, op in enumerate(graph.program().ops):
        tiles, boxes = graph.tiles_of(number)
        views = tuple((operand.value.dtype, operand.view) for operand in op.inputs)
        key = (op.family.kernel, op.attrs, op.program, views, tuple(value.dtype for value in op.outputs), op.output.shape)
        for tile, shape in zip(tiles.tolist(), map(tuple, (boxes[:, :, 1] - boxes[:, :, 0]).tolist()), strict=True):
            result[tile] = classes.setdefault((key, shape), len(classes))
    return result


def random_inputs(graph: TileGraph) -> list[np.ndarray]:
    """Small random numbers for the graph's inputs, and zeros and ones for integers, which may be indices."""
    inputs = graph.operands[: len(graph.operands) - len(graph.constants)].tolist()
    return [random_array(Value(*graph.value(operand)), number) for number, operand in enumerate(inputs)]
