"""Convolutions that are no product of whole vectors, or of too few channels a group (cuda/kernels/conv_by_element.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.cuda.kernel import Kernel, constant, input_type
from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ConvShape:
    """A convolution, as ConvShape in cuda/kernels/conv_by_element.h.

    Attributes:
        height, width: of the input.
        kernel_height, kernel_width: of the window.
        channels, outputs: of a group.
        y_step, x_step: strides.
        y_dilation, x_dilation: from an element of a window to the next.
        top, left: padding.
    """

    height: int
    width: int
    kernel_height: int
    kernel_width: int
    channels: int
    outputs: int
    y_step: int
    x_step: int
    y_dilation: int
    x_dilation: int
    top: int
    left: int

    @classmethod
    def of(cls, op: Op) -> ConvShape:
        attrs, (x, w) = op.attrs, op.inputs[:2]
        (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = x.shape, w.shape
        (y_step, x_step), (y_dilation, x_dilation), (top, _, left, _) = attrs.strides, attrs.dilation, attrs.padding
        of_group = max(outputs // attrs.groups, 1)
        window = height, width, kernel_height, kernel_width
        return cls(*window, channels, of_group, y_step, x_step, y_dilation, x_dilation, top, left)


def conv_by_element(op: Op) -> Kernel:
    """The kernel of such a convolution."""
    return Kernel("ConvByElement", [input_type(op, 0), input_type(op, 1), constant(ConvShape.of(op))])
