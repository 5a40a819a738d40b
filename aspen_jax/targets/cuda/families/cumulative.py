"""Running results along an axis (cuda/kernels/cumulative.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.ops import windows
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes

_COMBINE = {windows.SUM: "add", windows.PRODUCT: "mul", windows.MAX: "max", windows.MIN: "min"}


@dataclasses.dataclass(frozen=True)
class CumulativeShape:
    """The axis that is walked, as CumulativeShape in cuda/kernels/cumulative.h.

    Attributes:
        axis: that is walked.
        extent: its elements.
        reverse: from the end to the beginning.
    """

    axis: int
    extent: int
    reverse: bool

    @classmethod
    def of(cls, op: Op) -> CumulativeShape:
        return cls(op.attrs.axis, op.output.shape[op.attrs.axis], op.attrs.reverse)


@writes("cumulative")
def _cumulative(op: Op) -> Kernel:
    kind, dtype = op.attrs.kind, op.inputs[0].dtype
    lane = "u" if dtype.name == "uint32" and kind in (windows.MAX, windows.MIN) else lane_of(dtype)
    combine = f"scalar::{_COMBINE[kind]}_{lane}" if kind in _COMBINE else "scalar::add_of_exponentials"
    return Kernel("Cumulative", [input_type(op, 0), combine, constant(CumulativeShape.of(op))])
