"""What a convolution reads for each element of its output (cuda/kernels/window.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class Window:
    """As Window in cuda/kernels/window.h.

    Attributes:
        height, width: of the input.
        kernel_height, kernel_width: of the window.
        y_step, x_step: strides of the convolution.
        y_dilation, x_dilation: from an element of a window to the next.
        top, left: padding.
    """

    height: int
    width: int
    kernel_height: int
    kernel_width: int
    y_step: int
    x_step: int
    y_dilation: int
    x_dilation: int
    top: int
    left: int

    @classmethod
    def of(cls, op: Op) -> Window:
        attrs, (x, w) = op.attrs, op.inputs[:2]
        (_, height, width, _), (kernel_height, kernel_width, _, _) = x.shape, w.shape
        (y_step, x_step), (y_dilation, x_dilation), (top, _, left, _) = attrs.strides, attrs.dilation, attrs.padding
        return cls(height, width, kernel_height, kernel_width, y_step, x_step, y_dilation, x_dilation, top, left)
