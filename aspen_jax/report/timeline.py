"""What follows from where and when each tile ran: rows to draw, idle gaps, the critical path, how many tiles were ready."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax import forks
from aspen_jax.cost.timing import duration
from aspen_jax.errors import InputError

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

CALLER = -1
"""The lane of a thread that walked a small graph itself instead of waking workers."""

NO_TILE = -1


class Idle(enum.Enum):
    """Why a lane did nothing."""

    WAITS = "waits for"  # the lane's next tile was not ready; `tile` is its parent that ended last
    TAKES = "takes"  # the lane's next tile, `tile`, was ready: the time goes to the scheduler
    DONE = "no tile was left"  # the lane ran none until the run ended


_SHARES = {
    Idle.WAITS: "waiting for a tile",
    Idle.TAKES: "between a tile's being ready and its begin",
    Idle.DONE: "with no tile left",
}


@dataclasses.dataclass(frozen=True)
class Gap:
    """A time in which a lane ran no tile.

    Attributes:
        lane: the lane.
        begin: nanoseconds.
        end: nanoseconds.
        why: what the lane did instead.
        tile: the tile that `why` is about, or `NO_TILE`.
    """

    lane: int
    begin: int
    end: int
    why: Idle
    tile: int


class Timeline:
    """A run of a graph, real or simulated.

    Attributes:
        lane: int64 [T], where each tile ran.
        begin: int64 [T], nanoseconds.
        end: int64 [T], nanoseconds.
        lane_names: the name of each lane; those of the run without the caller's are numbered from 0.
        start: when the first tile began.
        stop: when the last tile ended.
        order: int64 [T], the tiles as they began; parents come before their children.
        last_parent: int64 [T], the parent of each tile that ended last, or `NO_TILE`.
        ready: int64 [T], when each tile could have begun.
        row: int64 [T]. Tiles of a lane that overlap, as those of one launch on a GPU do, are drawn in several rows.
        gaps: idle times, a lane after the other.
    """

    def __init__(self, graph: TileGraph, timeline: np.ndarray, lane_names: Sequence[str] | None = None):
        """Check a timeline and derive all else.

        Args:
            graph: what ran.
            timeline: int64 [T, 3]: lane, begin and end of each tile, as `TileGraph.timeline` gives them.
            lane_names: a name for each lane from 0; "worker 0" and so on for lanes that ran something if None.

        Raises:
            InputError: it is no timeline of this graph.
        """
        timeline = np.asarray(timeline)
        if timeline.shape != (graph.num_tiles, 3) or timeline.dtype.kind not in "iu":
            raise InputError(
                f"the timeline is {timeline.dtype}{list(timeline.shape)} and the graph has {graph.num_tiles} tiles; pass int64 "
                f"[{graph.num_tiles}, 3], as TileGraph.timeline gives it"
            )
        self.lane, self.begin, self.end = timeline.astype(np.int64).T
        num_lanes = int(self.lane.max(initial=-1)) + 1
        self._names = tuple(f"worker {lane}" for lane in range(num_lanes)) if lane_names is None else tuple(lane_names)
        self._check(graph, num_lanes)
        self.start, self.stop = (int(self.begin.min()), int(self.end.max())) if graph.num_tiles else (0, 0)
        depth = np.zeros(graph.num_tiles, np.int64)
        for number, tiles in enumerate(graph.dag.levels):
            depth[tiles] = number
        self.order = np.lexsort((depth, self.end, self.begin))
        parents, children = graph.dag.edges()
        by_end = np.lexsort((self.end[parents], children))
        last = by_end[np.append(np.diff(children[by_end]) != 0, True)[: len(by_end)]]
        self.last_parent = np.full(graph.num_tiles, NO_TILE, np.int64)
        self.last_parent[children[last]] = parents[last]
        self.ready = (
            np.where(self.last_parent == NO_TILE, self.start, self.end[self.last_parent]) if graph.num_tiles else self.end
        )
        self._place()

    @property
    def lanes(self) -> list[tuple[int, str]]:
        """Number and name of each lane, the caller's first where it ran something."""
        caller = [(CALLER, "caller")] if (self.lane == CALLER).any() else []
        return [*caller, *enumerate(self._names)]

    @forks.cached_property
    def critical_path(self) -> list[int]:
        """The tiles that determined when the run ended, in order.

        Before each tile comes its parent that ended last, or the tile before it on its lane if that ended later.
        """
        path: list[int] = []
        tile = max(self.order.tolist()[::-1], key=self.end.__getitem__, default=NO_TILE)
        while tile != NO_TILE:
            path.append(tile)
            parent, before = int(self.last_parent[tile]), int(self._before[tile])
            lane_was_later = before != NO_TILE and (parent == NO_TILE or self.end[before] > self.end[parent])
            tile = before if lane_was_later else parent
        return path[::-1]

    @forks.cached_property
    def ready_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Times at which the number of tiles that are ready and have not begun changes, and the number from then on."""
        times, place = np.unique(np.concatenate([self.ready, self.begin]), return_inverse=True)
        change = np.where(np.arange(len(place)) < len(self.ready), 1, -1)
        counts = np.bincount(place, change, len(times)).astype(np.int64).cumsum()
        changes = np.diff(counts, prepend=-1) != 0
        return times[changes], counts[changes]

    def busy(self, lane: int) -> int:
        """Nanoseconds in which a lane ran tiles."""
        return self.stop - self.start - sum(gap.end - gap.begin for gap in self.gaps if gap.lane == lane)

    def idle_share(self, why: Idle) -> float:
        """The share of all lanes' time that went so."""
        lost = sum(gap.end - gap.begin for gap in self.gaps if gap.why is why)
        return lost / max((self.stop - self.start) * len(self.lanes), 1)

    def __str__(self) -> str:
        span = max(self.stop - self.start, 1)
        path = self.critical_path
        in_tiles = int((self.end - self.begin)[path].sum()) / span
        shares = ", ".join(f"{self.idle_share(why):.1%} {text}" for why, text in _SHARES.items())
        return (
            f"{_counted(len(self.order), 'tile')} on {_counted(len(self.lanes), 'lane')} took {duration(span / 1e9)}\n"
            f"time of the lanes: {1 - sum(map(self.idle_share, Idle)):.1%} in tiles, {shares}\n"
            f"critical path: {_counted(len(path), 'tile')}, {in_tiles:.1%} of the time"
        )

    def _check(self, graph: TileGraph, num_lanes: int) -> None:
        if num_lanes > len(self._names):
            raise InputError(f"a tile ran on lane {num_lanes - 1} and lane_names has {len(self._names)} names; name every lane")
        wrong = np.flatnonzero((self.begin < 0) | (self.end < self.begin) | (self.lane < CALLER))
        if wrong.size:
            tile = int(wrong[0])
            raise InputError(
                f"tile {tile} runs on lane {self.lane[tile]} from {self.begin[tile]} to {self.end[tile]}; a timeline has lanes "
                f"from {CALLER} and times from 0, the end not before the begin"
            )
        parents, children = graph.dag.edges()
        wrong = np.flatnonzero(self.end[parents] > self.begin[children])
        if wrong.size:
            parent, child = int(parents[wrong[0]]), int(children[wrong[0]])
            raise InputError(
                f"tile {child} begins at {self.begin[child]}, before its parent, tile {parent}, ends at {self.end[parent]}; "
                "pass the timeline of one run of this graph"
            )

    def _place(self) -> None:
        """Rows and gaps, in one walk along each lane."""
        self.row = np.zeros(len(self.order), np.int64)
        self._before = np.full(len(self.order), NO_TILE, np.int64)
        self.gaps: list[Gap] = []
        for lane, _ in self.lanes:
            last: dict[int, int] = {}  # tile of each row
            idle_from = self.start
            tiles = self.order[self.lane[self.order] == lane]
            self.row[tiles] = rows(self.begin[tiles], self.end[tiles])
            for tile in tiles.tolist():
                begin, end, row = int(self.begin[tile]), int(self.end[tile]), int(self.row[tile])
                self._before[tile] = last.get(row, NO_TILE)
                last[row] = tile
                if begin > idle_from:
                    known = max(int(self.ready[tile]), idle_from)
                    if known > idle_from:
                        self.gaps.append(Gap(lane, idle_from, known, Idle.WAITS, int(self.last_parent[tile])))
                    if begin > known:
                        self.gaps.append(Gap(lane, known, begin, Idle.TAKES, tile))
                idle_from = max(idle_from, end)
            if idle_from < self.stop:
                self.gaps.append(Gap(lane, idle_from, self.stop, Idle.DONE, NO_TILE))


def rows(begin: np.ndarray, end: np.ndarray) -> list[int]:
    """A row for each interval, so that none of a row overlap: the first that is free.

    Args:
        begin: int64 [n], ascending.
        end: int64 [n].
    """
    free_from: list[int] = []
    result = []
    for start, stop in zip(begin.tolist(), end.tolist(), strict=True):
        row = next((row for row, time in enumerate(free_from) if time <= start), len(free_from))
        free_from[row : row + 1] = [stop]
        result.append(row)
    return result


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
