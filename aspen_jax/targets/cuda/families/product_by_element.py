"""Products that no matrices describe (cuda/kernels/product_by_element.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, Strides, constant
from aspen_jax.targets.cuda.code.lanes import element


@dataclasses.dataclass(frozen=True)
class SumShape:
    """What an element of a product is the sum of, as SumShape in cuda/kernels/product_by_element.h.

    Attributes:
        rank: summed axes.
        extents: of each of them.
        left, right: strides of the output's axes.
        left_summed, right_summed: strides of the summed axes.
    """

    rank: int
    extents: tuple[int, ...]
    left: Strides
    right: Strides
    left_summed: Strides
    right_summed: Strides

    @classmethod
    def of(cls, op: Op) -> SumShape:
        attrs, rank = op.attrs, len(op.output.shape)
        summed = {label: size for label, size in zip(attrs.a, op.inputs[0].shape, strict=True) if label < 0}

        def strides(number: int, labels: list[int]) -> Strides:
            own = dict(zip((attrs.a, attrs.b)[number], op.inputs[number].view.strides(), strict=True))
            return Strides(len(labels), tuple(own.get(label, 0) for label in labels))

        sides = [strides(number, labels) for labels in ([*range(rank)], [*summed]) for number in (0, 1)]
        return cls(len(summed), tuple(summed.values()), *sides)


def product_by_element(op: Op) -> Kernel:
    """The kernel of such a product."""
    left, right = (str(element(item.dtype)) for item in op.inputs[:2])
    return Kernel("ProductByElement", [left, right, constant(SumShape.of(op))])
