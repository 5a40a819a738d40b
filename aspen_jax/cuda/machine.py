"""The cost model of a GPU: a worker is a place for a thread block."""

from __future__ import annotations

import dataclasses

import numpy as np

from aspen_jax.apu import Machine
from aspen_jax.ops.family import Work
from aspen_jax.program import Op

# A thread block computes products in squares of so many rows and columns (aspen_jax/cuda/products.py).
_SQUARE = 64


@dataclasses.dataclass(frozen=True)
class Gpu(Machine):
    """A GPU with as many multiprocessors as an H100 or H200, each of which holds two thread blocks of a product at once.

    What its tensor cores and its memory give a block are NVIDIA's figures, by half; nothing was measured yet.
    """

    flops_per_ns: float = 700.0
    bytes_per_ns: float = 9.0
    tile_ns: float = 300.0
    shortest_tile_ns: float = 1_000.0
    tiles_per_worker: int = 0  # the price alone decides: a square is the same time however little of it is asked for

    def of_boxes(self, op: Op, boxes: np.ndarray) -> np.ndarray:
        """Estimated time of tiles; of products that of whole squares."""
        work = op.family.work(op, boxes)
        if op.family.name not in ("conv2d", "matmul") or not op.output.shape:
            return self.nanoseconds(work)
        extents = np.maximum(boxes[:, :, 1] - boxes[:, :, 0], 1)
        columns = extents[:, -1]
        rows = extents[:, _row_axes(op)].prod(axis=1)
        filled = rows * columns / (_whole(rows) * _whole(columns))
        # What a block does not need it does not load, but it waits as long. So no square is cut for nothing.
        return self.nanoseconds(Work(work.flops / filled, work.bytes / filled))


NUM_BLOCKS = 264


def _row_axes(op: Op) -> list[int]:
    """The axes of the output that are rows of one matrix, as against batches of matrices."""
    axes = range(len(op.output.shape) - 1)
    if op.family.name == "conv2d":
        return list(axes)
    return [axis for axis in axes if axis not in op.attrs.b]


def _whole(extents: np.ndarray) -> np.ndarray:
    return -(-extents // _SQUARE) * _SQUARE
