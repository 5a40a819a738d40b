"""Runs of a graph that begin before their inputs are complete, and whose results are known part by part."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from aspen_jax import forks, runtime
from aspen_jax.errors import EngineError, InputError
from aspen_jax.graph.tilegraph import TileGraph

# Python looks after Ctrl-C at the end of each wait.
_LOOK_SECONDS = 0.1


class Part(NamedTuple):
    """A part of a result that is final.

    Attributes:
        result: the number of the result.
        part: the number of the part, among those of the result.
    """

    result: int
    part: int


class Arrivals:
    """Which tiles of a graph wait for which pieces of its inputs, made once for many runs.

    Attributes:
        graph: the graph.
        pieces: for each input that comes in pieces, by its number, their boxes: int64 [n, rank, 2], half-open.
        parts: for each result, the boxes of the parts in which it becomes final: int64 [n, rank, 2], half-open.
        waiting: how many tiles wait for each piece, int64 [pieces]; and the tiles of the first piece, then of the second, int64.
        order: the engine's order of ready tiles, if a run is told none. "deep first" has the first parts of results early, but
            goes from op to op and reads weights more often. So runs that wait for pieces have "shallow first".
        parts_of: by tile, the parts that it writes. A part is final when all tiles that write it have ended.
    """

    def __init__(self, graph: TileGraph, pieces: Mapping[int, np.ndarray]):
        """Ask the ops which pieces their tiles read.

        Args:
            graph: the graph.
            pieces: boxes [n, rank, 2] by the number of the input. Together they hold each element of the input once, as the cells
                of a grid do. An input without elements has none.

        Raises:
            InputError: there is no such input, or the boxes are no cut of it.
        """
        from aspen_jax.apu.arrivals import waiting_tiles, written_results

        num_inputs = len(graph.operands) - len(graph.constants)
        for index in pieces:
            if not 0 <= index < num_inputs:
                raise InputError(f"input {index} comes in pieces, and the graph has {num_inputs} inputs")
        self.graph = graph
        self.pieces = {
            index: _checked(boxes, f"input {index}", len(graph.value(graph.operands[index])[0]))
            for index, boxes in pieces.items()
        }
        self.order = "shallow first" if self.pieces else "deep first"
        self.waiting = waiting_tiles(graph, self.pieces)
        self.parts: list[np.ndarray] = []
        self.parts_of: dict[int, list[Part]] = {}
        self._num_tiles: dict[Part, int] = {}
        for result, (writers, boxes) in enumerate(written_results(graph)):
            shape = graph.value(graph.results[result])[0]
            self.parts.append(whole_box(shape)[: len(writers)] if boxes is None else boxes)
            for index, tile in enumerate(writers.tolist()):
                part = Part(result, 0 if boxes is None else index)
                self.parts_of.setdefault(tile, []).append(part)
                self._num_tiles[part] = self._num_tiles.get(part, 0) + 1
        wanted = np.zeros(graph.num_tiles, np.uint8)
        wanted[list(self.parts_of)] = 1
        self._engine = graph.plan.arrivals(*self.waiting, wanted)

    @forks.cached_property
    def _first_piece(self) -> dict[int, int]:
        counts = [len(boxes) for boxes in self.pieces.values()]
        return dict(zip(self.pieces, (np.cumsum(counts) - counts).tolist(), strict=True))

    def start(
        self,
        *inputs: Any,
        priority: int | None = None,
        deadline: float | None = None,
        order: str | None = None,
    ) -> ArrivingRun:
        """Start a run.

        Args:
            *inputs: an array for each input, in the order of the graph. Those that come in pieces are not looked at.
            priority: as for `TileGraph.run`.
            deadline: as for `TileGraph.run`.
            order: the engine's order of ready tiles; the attribute if None.

        Raises:
            InputError: the inputs do not fit.
            EngineError: the run cannot be started, or needs more memory than `aspen_jax.limits` allows.
        """
        graph = self.graph
        given = list(inputs)
        for index in self.pieces:
            if index < len(given):
                given[index] = np.empty(*graph.value(graph.operands[index]))
        run_key = None if priority is None and deadline is None else runtime.run_key(priority, deadline)
        operands = graph.operands_of(given)
        results, run = graph.plan.start(operands, self._engine, run_key, self.order if order is None else order)
        return ArrivingRun(self, operands, results, run)


class ArrivingRun:
    """A run whose inputs come in pieces. Any thread may bring pieces; one thread at a time reads parts.

    `aspen_jax.limits` holds for it. Beyond its time it ends at its next tile, or when parts or results are asked for.
    """

    def __init__(self, arrivals: Arrivals, operands: list[np.ndarray], results: list[np.ndarray], run: Any):
        """See `Arrivals.start`."""
        self._arrivals = arrivals
        self._operands = operands
        self._results = results
        self._run = run
        self._tiles_left = dict(arrivals._num_tiles)
        self._lock = forks.Lock()
        self._brought: set[int] = set()

    @property
    def pieces(self) -> Mapping[int, np.ndarray]:
        """`Arrivals.pieces`."""
        return self._arrivals.pieces

    def kind_of_piece(self, index: int, piece: int) -> jax.ShapeDtypeStruct:
        """Shape and dtype of a piece of an input."""
        low, high = self.pieces[index][piece].T
        return jax.ShapeDtypeStruct(tuple((high - low).tolist()), self._operands[index].dtype)

    def put(self, index: int, piece: int, values: np.ndarray) -> None:
        """Bring a piece of an input.

        Args:
            index: the number of the input.
            piece: the number of the piece.
            values: of the shape of its box and the input's dtype.

        Raises:
            InputError: there is no such piece, it has arrived before, or the values do not fit.
        """
        boxes = self._arrivals.pieces.get(index)
        if boxes is None or not 0 <= piece < len(boxes):
            raise InputError(f"the run waits for no piece {piece} of input {index}")
        into = _view(self._operands[index], boxes[piece])
        if values.shape != into.shape or values.dtype != into.dtype:
            raise InputError(
                f"piece {piece} of input {index} is {values.dtype}{list(values.shape)}, and the run waits for "
                f"{into.dtype}{list(into.shape)}"
            )
        number = self._arrivals._first_piece[index] + piece
        # Before it is written: who brings a piece twice must not write what tiles are reading.
        with self._lock:
            if number in self._brought:
                raise InputError(f"piece {piece} of input {index} has arrived already; each arrives once")
            self._brought.add(number)
        into[...] = values
        self._run.arrived(number)

    def cancel(self, why: str = "the run was cancelled") -> None:
        """End the run with an error, unless all pieces have arrived. Does not wait."""
        self._run.cancel(why)

    def parts(self, seconds: float | None = None) -> Iterator[list[tuple[Part, np.ndarray]]]:
        """The parts of results as they become final, until the run is over.

        Args:
            seconds: how long to wait for the next parts; forever if None.

        Yields:
            All parts that have become final since the last look, at least one, each with its values, a view of the result.

        Raises:
            EngineError: the run failed, or no part came in time. It goes on then.
        """
        while tiles := self._next_tiles(seconds):
            found = []
            for part in itertools.chain.from_iterable(self._arrivals.parts_of[tile] for tile in tiles):
                self._tiles_left[part] -= 1
                if self._tiles_left[part] == 0:
                    found.append((part, _view(self._results[part.result], self._arrivals.parts[part.result][part.part])))
            if found:
                yield found
        self._check()

    def results(self, seconds: float | None = None) -> list[np.ndarray]:
        """Wait until the run is over.

        Args:
            seconds: how long.

        Returns:
            The results, as of `TileGraph.run`.

        Raises:
            EngineError: the run failed, or was not over in time. It goes on then.
        """
        for left in _waits(seconds, "the run was not over"):
            if self._run.error(left) is not None:
                break
        self._check()
        return self._results

    def _next_tiles(self, seconds: float | None) -> list[int]:
        """The tiles that come next; empty if the run is over."""
        for left in _waits(seconds, "no part of a result came"):
            is_over = self._run.error(0.0) is not None  # asked first: tiles may end between the two
            tiles = self._run.ended(0.0 if is_over else left)
            if tiles or is_over:
                return tiles
        raise AssertionError("the waits end with an error")

    def _check(self) -> None:
        if error := self._run.error(0.0):
            raise EngineError(error)


def whole_box(shape: Sequence[int]) -> np.ndarray:
    """The box of all elements, as the only one: int64 [1, rank, 2]."""
    return np.array([(0, extent) for extent in shape], np.int64).reshape(1, len(shape), 2)


def _waits(seconds: float | None, what: str) -> Iterator[float]:
    """How long to wait in one go, again and again until time is up."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    yield 0.0
    while (left := end - time.monotonic()) > 0:
        yield min(left, _LOOK_SECONDS)
    raise EngineError(f"{what} within {seconds} seconds; cancel the run, or wait longer")


def _view(array: np.ndarray, box: np.ndarray) -> np.ndarray:
    return array[(*(slice(low, high) for low, high in box.tolist()), ...)]  # of a scalar too


def _checked(boxes: Any, what: str, rank: int) -> np.ndarray:
    array = np.asarray(boxes)
    if array.shape[1:] != (rank, 2) or array.dtype.kind not in "iu":
        raise InputError(
            f"{what} of rank {rank} comes in pieces {array.dtype}{list(array.shape)}; pass integer boxes [n, {rank}, 2]"
        )
    return array.astype(np.int64)
