"""Convolutions of each channel by itself (cuda/kernels/depthwise.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, Strides, constant
from aspen_jax.targets.cuda.code.vectors import STORED, vector
from aspen_jax.targets.cuda.products.window import Window

# Pixels that share the inputs which their windows have in common, and bytes of adjacent channels.
_PIXELS = 4
_MOST_BYTES = {4: 16, 2: 8}


@dataclasses.dataclass(frozen=True)
class DepthwiseShape:
    """What a thread reads and computes, as DepthwiseShape in cuda/kernels/depthwise.h.

    Attributes:
        window: what an element is the sum of.
        input: strides of images, lines, pixels and channels.
        weights: strides of lines, pixels, their one input channel, and channels.
        pixels: neighbours of a line that a thread computes.
        vector: adjacent channels that it reads at once.
    """

    window: Window
    input: Strides
    weights: Strides
    pixels: int
    vector: int

    @classmethod
    def of(cls, op: Op) -> DepthwiseShape:
        x, w = op.inputs[:2]
        strides, w_strides = tuple(x.view.strides()), tuple(w.view.strides())
        adjacent = 1
        if strides[3] == w_strides[3] == 1:
            numbers = (x.shape[3], *strides[:3], *w_strides[:2], x.view.offset(), w.view.offset())
            adjacent = vector(x.dtype, *numbers, most=_MOST_BYTES[x.dtype.itemsize])
        pixels = min(_PIXELS, max(op.output.shape[2], 1))
        return cls(Window.of(op), Strides(4, strides), Strides(4, w_strides), pixels, adjacent)


def depthwise(op: Op) -> Kernel:
    """The kernel of conv2d with as many groups as channels in and out."""
    return Kernel("Depthwise", [STORED[op.inputs[0].dtype.name], constant(DepthwiseShape.of(op))])
