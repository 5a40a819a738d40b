"""Products whose rows are in groups (cuda/kernels/ragged_dot.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes


@dataclasses.dataclass(frozen=True)
class RaggedDotShape:
    """What an element is the sum of, as RaggedDotShape in cuda/kernels/ragged_dot.h.

    Attributes:
        groups: of rows, and as many matrices.
        depth: products that are summed.
    """

    groups: int
    depth: int

    @classmethod
    def of(cls, op: Op) -> RaggedDotShape:
        return cls(*op.inputs[1].shape[-3:-1])


@writes("ragged_dot")
def _ragged_dot(op: Op) -> Kernel:
    return Kernel("RaggedDot", [*(input_type(op, number) for number in range(3)), constant(RaggedDotShape.of(op))])
