"""Ops whose thread blocks also reduce what they have written (cuda/kernels/partial_reduce.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.partial_reduce import part_of
from aspen_jax.targets.cuda.code.kernel import Kernel, Strides, constant, kernel_of, writes
from aspen_jax.targets.cuda.code.lanes import element
from aspen_jax.targets.cuda.families.rows import combination


@dataclasses.dataclass(frozen=True)
class PartialReduceShape:
    """Where results and partial results lie, as PartialReduceShape in cuda/kernels/partial_reduce.h.

    Attributes:
        rank: of the result.
        unit: indices of the result behind one partial result, along each axis.
        result: how far its elements are apart.
        partial: the same for partial results.
    """

    rank: int
    unit: tuple[int, ...]
    result: Strides
    partial: Strides

    @classmethod
    def of(cls, op: Op) -> PartialReduceShape:
        return cls(len(op.output.shape), op.attrs.unit, _strides(op.output), _strides(op.further[0]))


@writes("partial_reduce")
def _partial_reduce(op: Op) -> Kernel | None:
    (partial,) = op.further
    combine = combination(partial.dtype, op.attrs.kind)
    if combine is None:
        return None
    function, start = combine
    arguments = [str(element(op.output.dtype)), str(element(partial.dtype)), function, f"{start:#x}u"]
    return kernel_of(part_of(op))._replace(around=("PartialReduce", *arguments, constant(PartialReduceShape.of(op))))


def _strides(value: Value) -> Strides:
    return Strides(len(value.shape), View.identity(value.shape).strides())
