"""Weights that a kernel fetches into the L2 cache before it waits for the launches before it (cuda/kernels/launch_order.h)."""

from __future__ import annotations

import dataclasses
import math

from aspen_jax.ir.program import Op
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.targets.cuda.products.matrices import Matrices

# Fewer are read as fast as they are fetched. More would push out of the cache what others read.
_LEAST_BYTES, _MOST_BYTES = 1 << 12, 1 << 24
# What is fetched begins at a multiple of so many bytes, and has such a multiple.
_UNIT = 16
# So much more than what is read may lie between it.
_MOST_SPAN = 1.25


@dataclasses.dataclass(frozen=True)
class Ahead:
    """What is fetched of an input before a launch begins, as Ahead in cuda/kernels/launch_order.h.

    Attributes:
        input: its number.
        bytes: so many are fetched, from element 0 on; 0: nothing is.
    """

    input: int
    bytes: int

    @classmethod
    def of(cls, op: Op) -> Ahead:
        """The columns of a product of one matrix, or a convolution's weights, if they lie together."""
        number = _weights(op)
        if number is None:
            return cls(0, 0)
        operand = op.inputs[number]
        strides = operand.view.strides()
        if not operand.shape or min(strides) < 0 or operand.view.offset() * operand.dtype.itemsize % _UNIT:
            return cls(0, 0)
        axes = [*zip(operand.shape, strides, strict=True)]
        span = sum((extent - 1) * stride for extent, stride in axes) + 1
        count = span * operand.dtype.itemsize // _UNIT * _UNIT
        is_together = span <= _MOST_SPAN * math.prod(extent for extent, stride in axes if stride)
        return cls(number, min(count, _MOST_BYTES)) if is_together and count >= _LEAST_BYTES else cls(0, 0)


def _weights(op: Op) -> int | None:
    """The input that all rows of an op are multiplied by; None where each matrix has its own, or there is none."""
    if op.family.name in ("conv2d", "conv2d_slices"):
        return 1
    matrices = Matrices.of(op) if op.family is MATMUL else None
    return matrices.right.number if matrices is not None and not matrices.outer else None
