"""How much of a product a thread block computes at once: for the code that does so, and for what it is thought to cost."""

from __future__ import annotations

import math

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.vectors import whole
from aspen_jax.targets.cuda.device import MULTIPROCESSORS
from aspen_jax.targets.cuda.products.kernel_choices import candidate_for
from aspen_jax.targets.cuda.products.streams import stream_block

# Rows and columns, the largest first. What warpgroups may multiply has all of them; the rest of float32 has the last.
_BLOCKS = ((128, 128), (64, 128), (64, 64))


def block(op: Op) -> tuple[int, int]:
    """The rows and columns of a product or convolution that a thread block computes at once.

    Those of the candidate that was timed, or of a like product's (kernel_choices.py). By default those that are streamed
    (streams.py). Else the largest, which reads its operands least often, of which there is still one for each
    multiprocessor, and of which the last row and column are hardly empty.
    """
    candidate = candidate_for(op)
    if candidate is not None:
        return candidate.rows, candidate.columns
    streamed = stream_block(op)
    if streamed is not None:
        return streamed
    grouped = op.family.name != "matmul" and op.attrs.groups > 1
    if not (op.inputs[0].dtype.itemsize == 2 or op.rounded) or not op.output.size or grouped:
        return _BLOCKS[-1]
    rows = math.prod(op.output.shape[axis] for axis in row_axes(op))
    columns = op.output.shape[-1]
    smallest = whole(rows, _BLOCKS[-1][0]) * whole(columns, _BLOCKS[-1][1])
    for shape in _BLOCKS[:-1]:
        filled = whole(rows, shape[0]) * whole(columns, shape[1])
        number = op.output.size // (rows * columns) * filled // math.prod(shape)
        if number >= MULTIPROCESSORS and filled <= 9 / 8 * smallest:
            return shape
    return _BLOCKS[-1]


def row_axes(op: Op) -> list[int]:
    """The axes of the output that are rows of one matrix, as against batches of matrices."""
    axes = range(len(op.output.shape) - 1)
    if op.family.name != "matmul":
        return list(axes[-3:])
    right = op.attrs.b if len(axes) in op.attrs.b else op.attrs.a
    return [axis for axis in axes if axis not in right]
