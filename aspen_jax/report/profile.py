"""JAX's profile with what happened inside of our custom calls, which JAX shows as one slice each."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import AspenError, InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.report.labels import Labels
from aspen_jax.report.timeline import CALLER, rows

CATEGORY = "aspen_jax"
PROCESS = "aspen_jax tiles"
LEFT_OUT = "left out"

_MARK = "aspen_jax clock "
_NUM_MARKS = 5  # at each end; the one that was entered fastest counts

_logger = logging.getLogger("aspen_jax")


@contextlib.contextmanager
def profile(folder: str | os.PathLike[str], *, max_tiles: int = 250_000) -> Iterator[None]:
    """Profile a block by JAX, and show where and when each tile of each call in it ran.

    This is `jax.profiler.trace` with a Perfetto trace. At the end of the block our slices are added to the file
    `plugins/profile/*/perfetto_trace.json.gz` in the folder: a track for each worker, on JAX's clock. Open it at
    https://ui.perfetto.dev.

    Wait for results inside of the block (`jax.block_until_ready`). Runs by `TileGraph.timeline` and on GPUs are not seen.

    Args:
        folder: where JAX writes its profile.
        max_tiles: how many tiles to keep, 40 bytes each. If more run, the trace and a warning of the logger "aspen_jax" say how
            many are left out, and from when on.

    Raises:
        InputError: `max_tiles` is no positive number.
        AspenError: a profile is being taken already, or JAX's does not show the marks by which the clocks are compared.

    Example:
        >>> with aspen_jax.profile("profiles"):
        ...     f(x).block_until_ready()
    """
    if isinstance(max_tiles, bool) or not isinstance(max_tiles, int) or max_tiles < 1:
        raise InputError(f"max_tiles={max_tiles!r} is not a positive number of tiles; pass 250_000, say")
    recorder = _engine.Recorder(max_tiles)
    try:
        jax.profiler.start_trace(folder, create_perfetto_trace=True)
    except RuntimeError as error:
        if "already been started" not in str(error):
            raise
        raise AspenError("a profile is being taken already, and JAX takes one at a time; end that one first") from error
    marks = _Marks()
    try:
        marks.set()
        recorder.start()
        yield
    finally:
        recording = _Recording.of(*recorder.stop())
        marks.set()
        jax.profiler.stop_trace()
        _merge(_newest(Path(folder)), recording, marks)


@dataclasses.dataclass(frozen=True)
class _Recording:
    """What a recorder saw.

    Attributes:
        tiles: int64 [n, 6]: graph, run, tile, worker, begin, end.
        graphs: bytes of each graph.
        num_left_out: how many tiles found no room.
        left_out_since: when the first of them began.
    """

    tiles: np.ndarray
    graphs: list[bytes]
    num_left_out: int
    left_out_since: int

    @classmethod
    def of(cls, tiles: bytes, graphs: list[bytes], num_left_out: int, left_out_since: int) -> _Recording:
        return cls(np.frombuffer(tiles, np.int64).reshape(-1, 6), graphs, num_left_out, left_out_since)


class _Marks:
    """Moments on both clocks: annotations that JAX's profile shows, named by our time just before."""

    def __init__(self) -> None:
        self.entered: dict[str, tuple[int, int]] = {}
        self.sets: list[list[str]] = []

    def set(self) -> None:
        """Mark now."""
        names = []
        for _ in range(_NUM_MARKS):
            name = f"{_MARK}{time.monotonic_ns()}"
            annotation = jax.profiler.TraceAnnotation(name)
            before = time.monotonic_ns()
            with annotation:
                after = time.monotonic_ns()
            self.entered[name] = before, after
            names.append(name)
        self.sets.append(names)

    def clock(self, events: list[dict[str, Any]]) -> _Clock:
        """How JAX's clock goes beside ours.

        Raises:
            AspenError: its profile does not show the marks.
        """
        theirs = {event["name"]: event["ts"] * 1e3 for event in events if event.get("name") in self.entered}
        points = []
        for names in self.sets:
            seen = [name for name in names if name in theirs]
            if seen:
                name = min(seen, key=lambda name: self.entered[name][1] - self.entered[name][0])
                points.append((sum(self.entered[name]) / 2, theirs[name]))
        if not points:
            raise AspenError("JAX's profile shows none of our marks, so the clocks cannot be compared; profile a shorter block")
        return _Clock(points[0], points[-1])


@dataclasses.dataclass(frozen=True)
class _Clock:
    """Converts times of our clock to those of JAX's profile, which may go at a slightly different pace.

    Attributes:
        first: a moment on both, in nanoseconds.
        last: a later one, or the same.
    """

    first: tuple[float, float]
    last: tuple[float, float]

    def theirs(self, ours: np.ndarray) -> np.ndarray:
        """Whole nanoseconds of JAX's profile, int64."""
        (a, x), (b, y) = self.first, self.last
        pace = (y - x) / (b - a) if b > a else 1.0
        since = ours - np.int64(a)  # small before it becomes a float
        return np.rint(x + since * pace).astype(np.int64)


def _newest(folder: Path) -> Path:
    found = list(folder.glob("plugins/profile/*/perfetto_trace.json.gz"))
    if not found:
        raise AspenError(f"JAX wrote no perfetto_trace.json.gz below {folder}; this aspen_jax needs one from its profiler")
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _merge(path: Path, recording: _Recording, marks: _Marks) -> None:
    """Add our slices to a file of Chrome's JSON, which appears whole."""
    with gzip.open(path, "rb") as file:
        content = json.load(file)
    events = content["traceEvents"]
    process = max((event["pid"] for event in events if isinstance(event.get("pid"), int)), default=0) + 1
    events += _events(recording, marks.clock(events), process)
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wb", compresslevel=5) as file:
        file.write(json.dumps(content).encode())
    partial.replace(path)


def _events(recording: _Recording, clock: _Clock, process: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": PROCESS}}
    labels = [Labels(TileGraph.from_bytes(graph)) for graph in recording.graphs]
    tiles = recording.tiles[np.argsort(recording.tiles[:, 4], kind="stable")]
    begin, end = clock.theirs(tiles[:, 4]), clock.theirs(tiles[:, 5])
    track = 0
    for worker in np.unique(tiles[:, 3]).tolist():
        own = np.flatnonzero(tiles[:, 3] == worker)
        row_of = np.array(rows(begin[own], end[own]))  # many threads may call at once
        for row in range(int(row_of.max()) + 1):
            name = "caller" if worker == CALLER else f"worker {worker}"
            yield from _track(process, track, name if row == 0 else f"{name} ({row + 1})")
            for index in own[row_of == row].tolist():
                graph, run, tile, _, began, ended = tiles[index].tolist()
                facts = {"run": run, **labels[graph].facts(tile, ended - began)}
                yield _slice(process, track, labels[graph].op(tile), int(begin[index]), int(end[index]), facts)
            track += 1
    if recording.num_left_out:
        text = f"{recording.num_left_out} tiles are left out, as there was room for {len(tiles)}; raise max_tiles of profile"
        _logger.warning("aspen_jax.profile: %s", text)
        since = int(clock.theirs(np.array(recording.left_out_since))) if recording.left_out_since else 0
        yield from _track(process, track, LEFT_OUT)
        yield _slice(process, track, text, since, max(since, int(clock.last[1])), {})


def _track(process: int, number: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def _slice(process: int, track: int, name: str, begin_ns: int, end_ns: int, facts: dict[str, Any]) -> dict[str, Any]:
    # Microseconds with three digits say whole nanoseconds, so slices that touch do not overlap.
    place = {"ph": "X", "pid": process, "tid": track, "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
    return {**place, "name": name, "cat": CATEGORY, "args": facts}
