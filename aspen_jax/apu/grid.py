"""Grids of tiles: cut points per dimension, and the tile of each cell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from aspen_jax import forks
from aspen_jax.graph.dag import expand
from aspen_jax.ir.program import Op, Value


def boxes_of(op: Op, output: Value, boxes: np.ndarray) -> np.ndarray:
    """The boxes that tiles write of one of an op's outputs, where `boxes` [n, rank, 2] are those of the first."""
    if output is op.output:
        return boxes
    unit = op.unit_of(output)
    if unit is None:
        whole = np.array([(0, extent) for extent in output.shape], np.int64).reshape(-1, 2)
        return np.broadcast_to(whole, (len(boxes), len(output.shape), 2))
    return boxes // np.array(unit, np.int64)[:, None]


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A value cut along planes. Boxes are int64 arrays [n, rank, 2] of half-open ranges.

    Attributes:
        cuts: per dimension, ascending from 0 to the extent.
        tiles: the tile id of each cell, in row-major order.
    """

    cuts: tuple[np.ndarray, ...]
    tiles: np.ndarray

    @classmethod
    def numbered(cls, cuts: Sequence[np.ndarray], first: int) -> Grid:
        """A grid of one cell a tile, with ids from `first`."""
        return cls(tuple(cuts), np.arange(first, first + math.prod(len(cut) - 1 for cut in cuts)))

    def of_output(self, op: Op, output: Value) -> Grid:
        """The same tiles on one of the op's outputs, where this is the grid of the first."""
        if output is op.output:
            return self
        unit = op.unit_of(output)
        if unit is None:
            return Grid(tuple(np.array([0, extent]) for extent in output.shape), self.tiles)
        return Grid(tuple(cut // size for cut, size in zip(self.cuts, unit, strict=True)), self.tiles)

    @forks.cached_property
    def boxes(self) -> np.ndarray:
        """The box of each cell."""
        counts = [len(cut) - 1 for cut in self.cuts]
        boxes = np.empty((*counts, len(counts), 2), np.int64)
        for d, cut in enumerate(self.cuts):
            along = (-1, *[1] * (len(counts) - d - 1))
            boxes[..., d, 0] = cut[:-1].reshape(along)
            boxes[..., d, 1] = cut[1:].reshape(along)
        return boxes.reshape(math.prod(counts), len(counts), 2)

    def touched(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which cells each box meets: (index into boxes, cell). Empty boxes meet none."""
        lows, counts = [], []
        for d, cut in enumerate(self.cuts):
            low = np.searchsorted(cut, boxes[:, d, 0], "right") - 1
            lows.append(low)
            counts.append(np.where(boxes[:, d, 1] > boxes[:, d, 0], np.searchsorted(cut, boxes[:, d, 1], "left") - low, 0))
        row, rest = expand(np.prod(counts, axis=0) if counts else np.ones(len(boxes), np.int64))
        cell = np.zeros(len(row), np.int64)
        unit = 1
        for low, count, cut in reversed(list(zip(lows, counts, self.cuts, strict=True))):
            rest, digit = np.divmod(rest, count[row])
            cell += (low[row] + digit) * unit
            unit *= len(cut) - 1
        return row, cell
