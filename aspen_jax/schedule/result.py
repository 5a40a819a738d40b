"""What happened, or would happen: when each tile runs on which lane, and what is copied."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule.costs import Costs, check_fit
from aspen_jax.schedule.machine import Machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from aspen_jax.report import trace


class Bounds(NamedTuple):
    """Nanoseconds below which no schedule ends.

    Attributes:
        critical_path: of the longest chain of tiles, each on the resource that is fastest for it.
        area: if the tiles were a liquid and nobody waited: the least time in which the lanes can do all the work.
    """

    critical_path: float
    area: float

    @property
    def best(self) -> float:
        """The larger of both."""
        return max(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """A run of a graph, real or simulated.

    Attributes:
        graph: what was run.
        machine: by what.
        policy: whose decisions these are.
        is_real: whether it was run, or simulated.
        lanes: int64 [tiles], the lane of each tile, resource by resource.
        begin: int64 [tiles], nanoseconds since the first tile began.
        end: int64 [tiles].
        copies: int64 [copies, 5]: tile, memory from, memory to, begin, end.
        costs: what was known of the tiles, if anything was.
        results: of a real run, as `TileGraph.run` gives them.
        place_ns: nanoseconds a tile that a policy spent deciding during a real run, with the wait for its turn; 0 where
            everything was planned before.
    """

    graph: TileGraph
    machine: Machine
    policy: str
    is_real: bool
    lanes: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    copies: np.ndarray
    costs: Costs | None = None
    results: tuple[np.ndarray, ...] = ()
    place_ns: float = 0.0

    @property
    def makespan(self) -> int:
        """Nanoseconds from the begin of the first tile to the end of the last."""
        return int(self.end.max(initial=0) - self.begin.min(initial=0)) if len(self.end) else 0

    @property
    def resources(self) -> np.ndarray:
        """The resource of each tile, int64 [tiles]."""
        return self.machine.lane_resources[self.lanes]

    @property
    def moved_bytes(self) -> int:
        """Bytes of all copies between memories."""
        return int(self.graph.tile_bytes[self.copies[:, 0]].sum())

    @property
    def timeline(self) -> np.ndarray:
        """Lane, begin and end of each tile, int64 [tiles, 3], as `TileGraph.timeline` gives them."""
        return np.stack([self.lanes, self.begin, self.end], axis=1)

    def bounds(self) -> Bounds:
        """What no schedule of these costs can beat.

        Raises:
            InputError: the costs are not known.
        """
        if self.costs is None:
            raise InputError("a real run knows no costs; pass them to `run`, as in run(graph, x, costs=costs)")
        return bounds(self.graph, self.machine, self.costs)

    def busy(self) -> np.ndarray:
        """The share of the makespan that each lane computes, float64 [lanes]."""
        work = np.bincount(self.lanes, self.end - self.begin, minlength=len(self.machine.lane_resources))
        return work / max(self.makespan, 1)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a file for Perfetto (https://ui.perfetto.dev): a track a lane and a link, idle gaps, copies, the critical path.

        Args:
            path: usually called `*.perfetto-trace`.

        Raises:
            OSError: it cannot be written.
        """
        from aspen_jax.report import trace

        expected = None
        if self.costs is not None:
            expected = np.rint(self.costs.ns[np.arange(self.graph.num_tiles), self.resources]).astype(np.int64)
        copies = self._copies()
        trace.write(path, self.graph, self.timeline, lane_names=self.machine.lane_names, costs=expected, copies=copies)

    def _copies(self) -> list[trace.Copy]:
        """The copies, each with the children that read it there, once it has come."""
        from aspen_jax.report import trace

        if not len(self.copies):
            return []
        memories = self.machine.memories
        memory = np.array([memories.index(resource.memory) for resource in self.machine.resources])[self.resources]
        starts = np.concatenate([[0], np.cumsum(self.graph.child_counts)])
        result = []
        for tile, source, target, begin, end in self.copies.tolist():
            edges = slice(starts[tile], starts[tile + 1])
            children = self.graph.children[edges][self.graph.carries_data[edges]]
            readers = children[(memory[children] == target) & (self.begin[children] >= end)]
            link = f"{memories[source]} to {memories[target]}"
            result.append(trace.Copy(tile, link, begin, end, int(self.graph.tile_bytes[tile]), tuple(readers.tolist())))
        return result

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw who ran what when, a row for each lane and a colour for each op, into a PNG, PDF or SVG file.

        Raises:
            InputError: matplotlib is not installed, or the file cannot be written.
        """
        compare([self]).picture(path)

    def __repr__(self) -> str:
        kind = "ran" if self.is_real else "simulated"
        busy = self.busy()
        return f"<Schedule {self.policy}, {kind}: {self.makespan / 1e6:.3f} ms on {len(busy)} lanes, {busy.mean():.0%} busy>"


def bounds(graph: TileGraph, machine: Machine, costs: Costs) -> Bounds:
    """What no schedule of a graph can beat; see `Bounds`.

    Raises:
        InputError: a tile has no kernel on any resource, or the costs are of another graph or machine.
    """
    check_fit(graph, machine, costs)
    fastest = costs.ns.min(axis=1) if graph.num_tiles else np.zeros(0)
    if not np.isfinite(fastest).all():
        raise InputError(f"tile {np.flatnonzero(~np.isfinite(fastest))[0]} has a kernel on no resource")
    critical = int(graph.dag.finish_times(np.rint(fastest).astype(np.int64)).max(initial=0))
    return Bounds(float(critical), _area(machine, costs.ns))


def _area(machine: Machine, ns: np.ndarray) -> float:
    """The least time T in which fractions of tiles fit: sum over tiles of share x ns <= lanes x T on each resource."""
    from scipy.optimize import linprog

    if not len(ns):
        return 0.0
    rows, counts = np.unique(ns, axis=0, return_counts=True)
    kinds, resources = rows.shape
    scale = float(np.where(np.isfinite(rows), rows, 0).max()) or 1.0
    usable = np.isfinite(rows)
    work = np.zeros((resources, kinds * resources + 1))
    shares = np.zeros((kinds, kinds * resources + 1))
    for resource in range(resources):
        columns = np.arange(kinds) * resources + resource
        work[resource, columns] = np.where(usable[:, resource], rows[:, resource], 0) / scale
        shares[np.arange(kinds), columns] = 1
        work[resource, -1] = -machine.resources[resource].lanes
    limits = [(0, None if fits else 0) for fits in usable.ravel()] + [(0, None)]
    goal = np.zeros(kinds * resources + 1)
    goal[-1] = 1
    found = linprog(goal, A_ub=work, b_ub=np.zeros(resources), A_eq=shares, b_eq=counts, bounds=limits, method="highs")
    return float(found.fun * scale)


class Comparison(tuple[Schedule, ...]):
    """Schedules beside each other: prints as a table, and draws itself."""

    def __str__(self) -> str:
        rows = [("policy", "", "makespan ms", "busy", "moved MB", "of the bound")]
        for item in self:
            share = "" if item.costs is None else f"{item.makespan / max(item.bounds().best, 1):.2f}"
            kind = "ran" if item.is_real else "simulated"
            figures = f"{item.makespan / 1e6:.3f}", f"{item.busy().mean():.0%}", f"{item.moved_bytes / 1e6:.1f}"
            rows.append((item.policy, kind, *figures, share))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the schedules below each other, on one axis of time, into a PNG, PDF or SVG file.

        Raises:
            InputError: matplotlib is not installed, or the file cannot be written.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise InputError("drawing needs matplotlib: pip install matplotlib") from None
        lanes = [len(item.machine.lane_resources) for item in self]
        figure = Figure(figsize=(11, 1.2 + sum(0.5 + 0.16 * max(count, 3) for count in lanes)), layout="constrained")
        longest = max((item.makespan for item in self), default=1) or 1
        ratios = [max(count, 3) for count in lanes]
        axes = figure.subplots(len(self), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for axis, item in zip(axes, self, strict=True):
            _draw(axis, item)
            axis.set_xlim(0, longest / 1e6)
        axes[-1].set_xlabel("milliseconds")
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise InputError(f"the picture cannot be written: {error}") from None


def _draw(axis: Axes, item: Schedule) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab20"]
    start = int(item.begin.min(initial=0)) if len(item.begin) else 0
    for lane in range(len(item.machine.lane_resources)):
        tiles = np.flatnonzero(item.lanes == lane)
        spans = np.stack([item.begin[tiles] - start, item.end[tiles] - item.begin[tiles]], axis=1) / 1e6
        axis.broken_barh(
            spans.tolist(), (lane - 0.4, 0.8), color=[colours(op % 20) for op in item.graph.tile_ops[tiles].tolist()]
        )
    names = item.machine.lane_names
    if len(names) <= 16:
        axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    kind = "ran" if item.is_real else "simulated"
    axis.set_title(f"{item.policy}, {kind}: {item.makespan / 1e6:.3f} ms", loc="left", fontsize=9)


def compare(schedules: Sequence[Schedule]) -> Comparison:
    """Schedules as a table and as a picture.

    Args:
        schedules: of one graph, usually by different policies.

    Raises:
        InputError: there are none.
    """
    if not schedules:
        raise InputError("there is nothing to compare: give at least one schedule")
    return Comparison(schedules)
