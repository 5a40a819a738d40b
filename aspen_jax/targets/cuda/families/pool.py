"""Pooling (cuda/kernels/pool.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes
from aspen_jax.targets.cuda.families.rows import combination


@dataclasses.dataclass(frozen=True)
class PoolShape:
    """Where the window of an element lies, as PoolShape in cuda/kernels/pool.h says it.

    Attributes:
        rank: axes.
        window: elements of a window along each axis.
        strides: from a window to the next.
        lo: how far the first window begins before the input.
        dilation: from an element of a window to the next.
        base: from an element of the input to the next.
        extent: of the input, with the places between its elements.
        start: the lane to begin with.
    """

    rank: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    lo: tuple[int, ...]
    dilation: tuple[int, ...]
    base: tuple[int, ...]
    extent: tuple[int, ...]
    start: int

    @classmethod
    def of(cls, op: Op, start: int) -> PoolShape:
        attrs, shape = op.attrs, op.inputs[0].shape
        extent = tuple((size - 1) * base + 1 for size, base in zip(shape, attrs.base_dilation, strict=True))
        return cls(
            len(shape),
            tuple(attrs.window),
            tuple(attrs.strides),
            tuple(attrs.padding_lo),
            tuple(attrs.window_dilation),
            tuple(attrs.base_dilation),
            extent,
            start,
        )


@writes("pool")
def _pool(op: Op) -> Kernel | None:
    combined = combination(op.inputs[0].dtype, op.attrs.kind)
    if combined is None:
        return None
    combine, start = combined
    return Kernel("Pool", [input_type(op, 0), combine, constant(PoolShape.of(op, start))])
