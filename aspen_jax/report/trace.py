"""A run of a graph as a file for Perfetto (https://ui.perfetto.dev)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aspen_jax.cost.timing import check_rounds
from aspen_jax.report.labels import Labels, bounded
from aspen_jax.report.perfetto import PerfettoTrace
from aspen_jax.report.timeline import Gap, Timeline

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

TILE, IDLE, CRITICAL_PATH, COPY = "tile", "idle", "critical path", "copy"
"""Categories of slices. A tile on the critical path has the third."""

_CRITICAL_FLOW = 1


class Copy(NamedTuple):
    """What a tile wrote goes to another memory.

    Attributes:
        tile: whose result it is.
        link: name of the way that it takes.
        begin: in nanoseconds of the timeline.
        end: likewise.
        num_bytes: how many.
        readers: tiles for which it is there.
    """

    tile: int
    link: str
    begin: int
    end: int
    num_bytes: int
    readers: tuple[int, ...] = ()


def write(
    path: str | os.PathLike[str],
    graph: TileGraph,
    timeline: np.ndarray,
    *,
    lane_names: Sequence[str] | None = None,
    costs: np.ndarray | None = None,
    copies: Sequence[Copy] = (),
) -> None:
    """Write a run of a graph, real or simulated, for Perfetto.

    Each lane is a track. Its slices are tiles, named by op, and idle gaps, named by what the lane waited for. Arrows lead along
    the critical path. A counter shows how many tiles were ready and had not begun. Each link with copies is a track too. Arrows
    lead from a tile to its copy and on to those who read it, and a counter shows the bytes in flight.

    Args:
        path: the file, usually called `*.perfetto-trace`.
        graph: what ran.
        timeline: int64 [T, 3]: lane, begin and end of each tile in nanoseconds, as `TileGraph.timeline` gives them.
        lane_names: a name for each lane from 0; "worker 0" and so on if None. Lane -1 is the caller's.
        costs: int64 [T], estimated nanoseconds, which the trace shows beside the measured ones; the graph's if None.
        copies: between memories, if there are any.

    Raises:
        InputError: the timeline is none of this graph, a lane has no name, or the costs do not fit.
        OSError: the file cannot be written.

    Example:
        >>> graph = f.graph(x)
        >>> write("run.perfetto-trace", graph, graph.timeline(x))
    """
    Path(path).write_bytes(encoded(Labels(graph, costs), Timeline(graph, timeline, lane_names), copies))


def fastest(graph: TileGraph, inputs: Sequence[Any], rounds: int) -> np.ndarray:
    """The timeline of the fastest of several runs, after one that warms up.

    Args:
        graph: what to run.
        inputs: as `TileGraph.run` takes them.
        rounds: how many runs.

    Raises:
        InputError: there are no rounds, or the inputs do not fit.
    """
    check_rounds(rounds)
    graph.run(*inputs)
    timelines = (graph.timeline(*inputs) for _ in range(rounds))
    return min(timelines, key=lambda rows: rows[:, 2].max(initial=0) - rows[:, 1].min(initial=2**62))


def encoded(labels: Labels, run: Timeline, copies: Sequence[Copy] = ()) -> bytes:
    """The content of a trace file."""
    trace = PerfettoTrace("aspen_jax")
    critical = set(run.critical_path)
    flows: dict[int, list[int]] = {tile: [_CRITICAL_FLOW] for tile in run.critical_path}
    for flow, copy in enumerate(copies, _CRITICAL_FLOW + 1):
        for tile in (copy.tile, *copy.readers):
            flows.setdefault(tile, []).append(flow)
    for lane, lane_name in run.lanes:
        tiles = run.order[run.lane[run.order] == lane]
        for row in range(int(run.row[tiles].max(initial=0)) + 1):
            track = trace.track(_row_name(lane_name, row))
            gaps = [gap for gap in run.gaps if gap.lane == lane and row == 0]
            spans: list[tuple[int, int, int | Gap]] = [(gap.begin, gap.end, gap) for gap in gaps]
            spans += [(int(run.begin[tile]), int(run.end[tile]), tile) for tile in tiles[run.row[tiles] == row].tolist()]
            for begin, end, what in sorted(spans, key=lambda span: span[:2]):
                if isinstance(what, Gap):
                    trace.slice(track, begin, end, labels.gap(what), [IDLE])
                    continue
                categories = [TILE, CRITICAL_PATH] if what in critical else [TILE]
                trace.slice(track, begin, end, labels.op(what), categories, labels.facts(what, end - begin), flows.get(what, ()))
    _add_copies(trace, labels, copies)
    counter = trace.counter("ready tiles")
    for time, count in zip(*(array.tolist() for array in run.ready_counts), strict=True):
        trace.count(counter, time, count)
    return trace.to_bytes()


def _add_copies(trace: PerfettoTrace, labels: Labels, copies: Sequence[Copy]) -> None:
    if not copies:
        return
    for link in dict.fromkeys(copy.link for copy in copies):
        rows: list[tuple[int, int]] = []  # of each the track, and when it is free again
        for flow, copy in sorted(enumerate(copies, _CRITICAL_FLOW + 1), key=lambda item: item[1].begin):
            if copy.link != link:
                continue
            row = next((row for row, (_, end) in enumerate(rows) if end <= copy.begin), len(rows))
            if row == len(rows):
                rows.append((trace.track(_row_name(link, row)), 0))
            track = rows[row][0]
            rows[row] = track, copy.end
            facts = {"tile": copy.tile, "bytes": copy.num_bytes}
            trace.slice(track, copy.begin, copy.end, labels.tile(copy.tile), [COPY], facts, [flow])
    counter = trace.counter("bytes in flight")
    changes: dict[int, int] = {}
    for copy in copies:
        changes[copy.begin] = changes.get(copy.begin, 0) + copy.num_bytes
        changes[copy.end] = changes.get(copy.end, 0) - copy.num_bytes
    in_flight = 0
    for time, change in sorted(changes.items()):
        in_flight += change
        trace.count(counter, time, in_flight)


def _row_name(name: str, row: int) -> str:
    """The name of a track's row; what overlaps on a lane or link is spread over several rows."""
    return bounded(name) if row == 0 else f"{bounded(name)} ({row + 1})"
