"""Block ops: a program on each element, by runs of adjacent ones where there are such (cuda/kernels/elements.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, writes
from aspen_jax.targets.cuda.code.runs import is_run, run_length


@dataclasses.dataclass(frozen=True)
class ElementwiseShape:
    """How elements are shared out to threads, as ElementwiseShape in cuda/kernels/elements.h.

    Attributes:
        run: adjacent elements that a thread computes at once.
    """

    run: int

    @classmethod
    def of(cls, op: Op) -> ElementwiseShape:
        last = len(op.output.shape) - 1
        adjacent = [item.dtype for number, item in enumerate(op.inputs) if last >= 0 and is_run(op, number, last, 1)]
        return cls(run_length(op, *adjacent))


@writes("block")
def _block(op: Op) -> Kernel:
    shape = ElementwiseShape.of(op)
    return Kernel("Elementwise", [constant(shape)], run=shape.run)
