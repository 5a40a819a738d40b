"""Padding (cuda/kernels/pad.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes


@dataclasses.dataclass(frozen=True)
class PadShape:
    """Where the input's elements lie in the output, as PadShape in cuda/kernels/pad.h says it.

    Attributes:
        rank: axes.
        lo: of the first element along each axis.
        step: from an element to the next.
        extent: of the input, with the places between its elements.
    """

    rank: int
    lo: tuple[int, ...]
    step: tuple[int, ...]
    extent: tuple[int, ...]

    @classmethod
    def of(cls, op: Op) -> PadShape:
        shape, step = op.inputs[0].shape, tuple(interior + 1 for interior in op.attrs.interior)
        extent = tuple((size - 1) * apart + 1 if size else 0 for size, apart in zip(shape, step, strict=True))
        return cls(len(shape), tuple(op.attrs.lo), step, extent)


@writes("pad")
def _pad(op: Op) -> Kernel:
    return Kernel("Pad", [input_type(op, 0), input_type(op, 1), constant(PadShape.of(op))])
