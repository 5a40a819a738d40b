"""Runs a graph again for inputs that have changed a little: only the tiles that the change reaches (ASPEN, section 5).

All values keep their memory from run to run. A tile runs again if a bit of what it reads of an input has changed, or if a tile
runs again whose output it reads. Tiles and boxes are those of the graph, so every bit is what a run of all tiles gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.graph.dag import unique
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Value


class Incremental:
    """A graph and the values of its last run. One run at a time.

    Args:
        graph: no two of its values share memory (`apu.build` with `reuse=False`), and no op works in place.

    Raises:
        InputError: a value lies where another one was.
    """

    def __init__(self, graph: TileGraph):
        from aspen_jax import _engine
        from aspen_jax.apu.verify import reads_of_graph

        if not _keeps_values(graph):
            raise InputError("values of the graph share memory, so none is there for the next run; build it with reuse=False")
        self.graph = graph
        self._engine = _engine.Stream(graph.plan)
        self._given: list[Any] | None = None
        self._arrays: list[np.ndarray] = []
        program, _, reads = reads_of_graph(graph)
        of_input = {value: index for index, value in enumerate(program.inputs)}
        every = itertools.chain.from_iterable(reads)
        self._readers = [_Readers(of_input[read.value], *read) for read in every if read.value in of_input]

    def run(self, inputs: Sequence[Any]) -> tuple[list[np.ndarray], np.ndarray]:
        """Runs what the change of inputs since the last run reaches; the first run, and one after an error, runs all.

        Args:
            inputs: an array or a Python number for each input of the graph. Arrays of numpy may be changed by their owner later.

        Returns:
            The results, in memory that the next run writes, and which tiles have run, bool [T].

        Raises:
            InputError: the inputs do not fit. The values of the last run stay.
            EngineError: the run failed.
        """
        arrays = self.graph.operands_of(inputs)
        given = [item if isinstance(item, jax.Array) else None for item in inputs]  # those never change
        before = self._given
        if before is None:
            reached = np.ones(self.graph.num_tiles, bool)
        else:
            same = [item is not None and item is old for item, old in zip(given, before, strict=True)]
            reached = self._reached([None if is_same else array for array, is_same in zip(arrays, same, strict=False)])
        self._given = None
        results = self._engine.run(arrays, None if before is None else reached.tobytes())
        kept = [array if item is not None else array.copy() for array, item in zip(arrays, given, strict=False)]
        self._given, self._arrays = given, kept
        return results, reached

    def _reached(self, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        """The tiles that a change of inputs reaches; None for an input that is as it was."""
        changed = [None if new is None else _changed(old, new) for old, new in zip(self._arrays, arrays, strict=True)]
        reached = np.zeros(self.graph.num_tiles, bool)
        for readers in self._readers:
            where = changed[readers.index]
            if where is not None:
                reached[readers.of(where)] = True
        waiting = np.flatnonzero(reached)
        while waiting.size:
            children = self.graph.dag.step(waiting)[1]
            waiting = unique(children[~reached[children]])
            reached[waiting] = True
        return reached


class _Readers:
    """The tiles of an op that read an input, and what each reads, in cells of the grid of all planes of these boxes.

    Args:
        index: the number of the input.
        value: the input.
        tiles: int array [n].
        boxes: int array [n, rank, 2], not empty.
    """

    def __init__(self, index: int, value: Value, tiles: np.ndarray, boxes: np.ndarray):
        self.index = index
        self._tiles = tiles
        self._cuts = [np.unique(np.append(boxes[:, d], (0, extent))) for d, extent in enumerate(value.shape)]
        self._corners = [np.searchsorted(cut, boxes[:, d]) for d, cut in enumerate(self._cuts)]

    def of(self, changed: np.ndarray) -> np.ndarray:
        """The tiles that read an element that has changed, by a summed-area table of the cells."""
        if not self._tiles.size:
            return self._tiles
        cells = changed
        for d, cut in enumerate(self._cuts):
            cells = np.logical_or.reduceat(cells, cut[:-1], axis=d)
        sums = np.zeros([extent + 1 for extent in cells.shape], np.int64)
        sums[(slice(1, None),) * cells.ndim] = cells
        for d in range(cells.ndim):
            np.cumsum(sums, axis=d, out=sums)
        count = np.zeros(len(self._tiles), np.int64)
        for ends in itertools.product((0, 1), repeat=cells.ndim):
            sign = -1 if (cells.ndim - sum(ends)) % 2 else 1
            count += sign * sums[tuple(corners[:, end] for corners, end in zip(self._corners, ends, strict=True))]
        return self._tiles[count > 0]


def _changed(old: np.ndarray, new: np.ndarray) -> np.ndarray | None:
    """Where two arrays differ in a bit, so that NaN equals itself and -0.0 is not 0.0; None where they do not."""
    bits = np.dtype(f"u{old.dtype.itemsize}")
    changed = np.ascontiguousarray(old).view(bits) != np.ascontiguousarray(new).view(bits)
    return changed.reshape(old.shape) if changed.any() else None


def _keeps_values(graph: TileGraph) -> bool:
    """Whether each value that an op writes has memory of its own."""
    written = [*graph.ops[:, 1].tolist(), *graph.further_outputs[:, 1].tolist()]
    spans = []
    for number in written:
        shape, dtype = graph.value(number)
        buffer, offset = graph.values[number, :2].tolist()
        if buffer < len(graph.operands):
            return False
        size = int(np.prod(shape)) * dtype.itemsize
        spans += [(buffer, offset, offset + size)] if size else []
    spans.sort()
    return all(left[0] != right[0] or left[2] <= right[1] for left, right in itertools.pairwise(spans))
