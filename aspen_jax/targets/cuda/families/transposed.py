"""Convolutions that store their result in another order of axes, as NCHW callers want it (cuda/kernels/transposed.h)."""

from __future__ import annotations

from aspen_jax.ir.program import Op
from aspen_jax.ir.view import View
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.family import unpermuted
from aspen_jax.ops.transposed import part_of
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, writes
from aspen_jax.targets.cuda.families.conv import in_blocks
from aspen_jax.targets.cuda.families.products import DOWN_COLUMNS
from aspen_jax.targets.cuda.products.matrices import Axes


@writes("transposed")
def _transposed(op: Op) -> Kernel | None:
    """Neighbours along the output's last axis are rows of a block: pixels. So sums are stored down the columns."""
    part = part_of(op)
    kernel = in_blocks(part, DOWN_COLUMNS) if part.family is CONV2D else None
    order: tuple[int, ...] = op.attrs.permutation
    return None if kernel is None else kernel._replace(around=("Transposed", constant(Axes(len(order), order))))


def strides_of_result(op: Op) -> tuple[int, ...]:
    """How far elements of the output are apart along the axes of the op's own result."""
    return tuple(unpermuted(View.identity(op.output.shape).strides(), op.attrs.permutation))
