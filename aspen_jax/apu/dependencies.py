"""Dependencies: a tile needs those whose boxes its regions meet. `OpFamily.region` and the views are the only source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspen_jax.apu.grid import Grid
from aspen_jax.ir.program import Op, Value


class Read(NamedTuple):
    """What tiles read of a value.

    Attributes:
        value: the value.
        tiles: int array [n], the reading tiles.
        boxes: int array [n, rank, 2], not empty, in the value's coordinates.
    """

    value: Value
    tiles: np.ndarray
    boxes: np.ndarray


def reads_of(op: Op, tiles: np.ndarray, boxes: np.ndarray) -> list[Read]:
    """What each tile of an op reads, an entry an input."""
    reads = []
    for index, operand in enumerate(op.inputs):
        region = op.family.region(op, index, boxes)
        used = (region[:, :, 1] > region[:, :, 0]).all(axis=1)
        reads.append(Read(operand.value, tiles[used], operand.view.region(operand.value.shape, region[used])))
    return reads


def data_edges(reads: list[Read], grids: dict[Value, Grid]) -> tuple[np.ndarray, np.ndarray]:
    """(writing tile, reading tile) for all reads of values that have a grid; pairs may repeat."""
    parents: list[np.ndarray] = [np.zeros(0, np.int64)]
    children: list[np.ndarray] = [np.zeros(0, np.int64)]
    for value, tiles, boxes in reads:
        if value in grids:
            row, cell = grids[value].touched(boxes)
            parents.append(grids[value].tiles[cell])
            children.append(tiles[row])
    return np.concatenate(parents), np.concatenate(children)
