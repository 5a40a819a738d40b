"""Convolutions that are no product of whole vectors, or of too few channels a group (cuda/kernels/conv_by_element.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type
from aspen_jax.targets.cuda.products.window import Window


@dataclasses.dataclass(frozen=True)
class ConvShape:
    """A convolution, as ConvShape in cuda/kernels/conv_by_element.h.

    Attributes:
        window: what an element is the sum of.
        channels, outputs: of a group.
    """

    window: Window
    channels: int
    outputs: int

    @classmethod
    def of(cls, op: Op) -> ConvShape:
        *_, channels, outputs = op.inputs[1].shape
        return cls(Window.of(op), channels, max(outputs // op.attrs.groups, 1))


def conv_by_element(op: Op) -> Kernel:
    """The kernel of such a convolution."""
    return Kernel("ConvByElement", [input_type(op, 0), input_type(op, 1), constant(ConvShape.of(op))])
