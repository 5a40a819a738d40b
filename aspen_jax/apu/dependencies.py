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


class Region(NamedTuple):
    """What tiles read of an input.

    Attributes:
        used: bool array, the tiles that read anything.
        boxes: int array [n, rank, 2] of those, in the value's coordinates.
    """

    used: np.ndarray
    boxes: np.ndarray


def regions_of(op: Op, boxes: np.ndarray) -> list[Region]:
    """What tiles that write these boxes read, an entry an input."""
    regions = []
    for index, operand in enumerate(op.inputs):
        region = op.family.region(op, index, boxes)
        used = (region[:, :, 1] > region[:, :, 0]).all(axis=1)
        regions.append(Region(used, operand.view.region(operand.value.shape, region[used])))
    return regions


def reads_of(op: Op, tiles: np.ndarray, boxes: np.ndarray) -> list[Read]:
    """What each tile of an op reads, an entry an input; `boxes` are those that the tiles write."""
    return reads_in(op, tiles, regions_of(op, boxes))


def reads_in(op: Op, tiles: np.ndarray, regions: list[Region]) -> list[Read]:
    """What each tile of an op reads, an entry an input, where the regions are known."""
    return [Read(item.value, tiles[region.used], region.boxes) for item, region in zip(op.inputs, regions, strict=True)]


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
