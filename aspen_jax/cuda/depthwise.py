"""Convolutions of each channel by itself (cuda/kernels/depthwise.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.cuda.kernel import Kernel, Strides, constant
from aspen_jax.cuda.vectors import STORED, vector
from aspen_jax.ir.program import Op

# Pixels that share the inputs which their windows have in common, and bytes of adjacent channels.
_PIXELS = 4
_MOST_BYTES = {4: 16, 2: 8}


@dataclasses.dataclass(frozen=True)
class DepthwiseShape:
    """As DepthwiseShape in cuda/kernels/depthwise.h.

    Attributes:
        height, width: of the input.
        kernel_height, kernel_width: of the window.
        y_step, x_step: strides of the convolution.
        y_dilation, x_dilation: from an element of a window to the next.
        top, left: padding.
        input: strides of images, lines, pixels and channels.
        weights: strides of lines, pixels, their one input channel, and channels.
        pixels: neighbours of a line that a thread computes.
        vector: adjacent channels that it reads at once.
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
    input: Strides
    weights: Strides
    pixels: int
    vector: int

    @classmethod
    def of(cls, op: Op) -> DepthwiseShape:
        attrs, (x, w) = op.attrs, op.inputs[:2]
        _, height, width, channels = x.shape
        strides, w_strides = tuple(x.view.strides()), tuple(w.view.strides())
        top, _, left, _ = attrs.padding
        adjacent = 1
        if strides[3] == w_strides[3] == 1:
            numbers = (channels, *strides[:3], *w_strides[:2], x.view.offset(), w.view.offset())
            adjacent = vector(x.dtype, *numbers, most=_MOST_BYTES[x.dtype.itemsize])
        pixels = min(_PIXELS, max(op.output.shape[2], 1))
        return cls(
            height,
            width,
            w.shape[0],
            w.shape[1],
            attrs.strides[0],
            attrs.strides[1],
            attrs.dilation[0],
            attrs.dilation[1],
            top,
            left,
            Strides(4, strides),
            Strides(4, w_strides),
            pixels,
            adjacent,
        )


def depthwise(op: Op) -> Kernel:
    """The kernel of conv2d with as many groups as channels in and out."""
    return Kernel("Depthwise", [STORED[op.inputs[0].dtype.name], constant(DepthwiseShape.of(op))])
