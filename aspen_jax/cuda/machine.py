"""The cost model of a GPU: a worker is a place for a thread block."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from aspen_jax.apu import Machine
from aspen_jax.cuda.conv import FEWEST_CHANNELS, NARROW
from aspen_jax.cuda.products import FEW_ROWS
from aspen_jax.ops.family import Work
from aspen_jax.program import Op

# A thread block computes products in squares of so many rows and columns (aspen_jax/cuda/products.py).
_SQUARE = 64

NUM_BLOCKS = 264


@dataclasses.dataclass(frozen=True)
class Gpu(Machine):
    """A GPU with as many multiprocessors as an H100 or H200, each of which holds two thread blocks of a product at once.

    What its tensor cores and its memory give a block are NVIDIA's figures, by half; nothing was measured yet.
    """

    flops_per_ns: float = 700.0
    bytes_per_ns: float = 9.0
    tile_ns: float = 300.0
    launch_ns: float = 1_500.0
    shortest_tile_ns: float = 1_000.0
    places: int = NUM_BLOCKS
    tiles_per_worker: int = 0  # the price alone decides: a square is the same time however little of it is asked for

    def of_boxes(self, op: Op, boxes: np.ndarray) -> np.ndarray:
        """Estimated time of tiles; of products that of whole squares."""
        work = op.family.work(op, boxes)
        if op.family.name not in ("conv2d", "conv2d_slices", "matmul") or not op.output.shape or _has_few_rows(op):
            return self.nanoseconds(work)
        extents = np.maximum(boxes[:, :, 1] - boxes[:, :, 0], 1)
        columns = extents[:, -1]
        rows = extents[:, _row_axes(op)].prod(axis=1)
        filled = rows * columns / (_whole(rows) * _whole_columns(op, columns))
        # What a block does not need it does not load, but it waits as long. So no square is cut for nothing.
        return self.nanoseconds(Work(work.flops / filled, work.bytes / filled))


def _row_axes(op: Op) -> list[int]:
    """The axes of the output that are rows of one matrix, as against batches of matrices."""
    axes = range(len(op.output.shape) - 1)
    if op.family.name != "matmul":
        return list(axes[-3:])
    right = op.attrs.b if len(axes) in op.attrs.b else op.attrs.a
    return [axis for axis in axes if axis not in right]


def _has_few_rows(op: Op) -> bool:
    return op.family.name == "matmul" and math.prod(op.output.shape[axis] for axis in _row_axes(op)) <= FEW_ROWS


def _whole(extents: np.ndarray, square: int = _SQUARE) -> np.ndarray:
    return -(-extents // square) * square


def _whole_columns(op: Op, columns: np.ndarray) -> np.ndarray:
    """Of groups each has columns of its own."""
    if op.family.name == "matmul" or op.attrs.groups == 1:
        return _whole(columns)
    per_group = op.output.shape[-1] // op.attrs.groups
    if min(op.inputs[1].shape[2], per_group) < FEWEST_CHANNELS:
        return _whole(columns)
    return np.maximum(columns // per_group, 1) * _whole(np.minimum(columns, per_group), _SQUARE if per_group > NARROW else NARROW)
