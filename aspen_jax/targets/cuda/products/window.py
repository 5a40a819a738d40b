"""What a convolution reads for each element of its output (cuda/kernels/window.h), and how much of it at once."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.ops.conv_slices import ConvSlicesAttrs
from aspen_jax.targets.cuda.code.vectors import vector


@dataclasses.dataclass(frozen=True)
class Window:
    """What the window of a convolution walks, as Window in cuda/kernels/window.h.

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


# What may be multiplied with the zeros that fill a tap, as a share of the rest. Not measured.
_MOST_MORE = 1


@dataclasses.dataclass(frozen=True)
class Taps:
    """How a convolution as a product goes through what a pixel reads.

    With few channels the taps of a line are one tap: they are adjacent where all of them lie in the image. Zeros fill it to whole
    vectors.

    Attributes:
        width: taps of a line.
        channels: adjacent elements of a tap.
        length: of the depth that a tap takes: behind its channels there are zeros.
        vector: adjacent elements that may be read at once; 1 where channels are not adjacent, as in NCHW.
    """

    width: int
    channels: int
    length: int
    vector: int

    @classmethod
    def of(cls, op: Op, *, fills: bool = True) -> Taps:
        """The taps of a convolution, or of slices of one.

        Args:
            op: of one group where taps are to be joined.
            fills: whether there may be zeros in the depth.
        """
        x, (_, width, channels, _) = op.inputs[0], op.inputs[1].shape
        of_image, of_line, of_pixel, of_channel = x.view.strides()
        if of_channel != 1 and x.shape[3] > 1:
            return cls(width, channels, channels, 1)
        if not _are_joined(op):
            return cls(width, channels, channels, vector(x.dtype, channels, of_image, of_line, of_pixel, x.view.offset()))
        apart = of_image, of_line, of_pixel * op.attrs.strides[1], of_pixel * op.attrs.padding[2], x.view.offset()
        joined, most = width * channels, vector(x.dtype, *apart)
        filled = -(-joined // most) * most
        if not fills or op.rounded or isinstance(op.attrs, ConvSlicesAttrs) or filled > (1 + _MOST_MORE) * joined:
            return cls(1, joined, joined, vector(x.dtype, joined, *apart))
        return cls(1, joined, filled, most)


def _are_joined(op: Op) -> bool:
    """Whether the taps of a line are one. Taps of whole vectors stay apart, so that boxes of them can be copied."""
    x, (_, width, channels, _) = op.inputs[0], op.inputs[1].shape
    *_, left, right = op.attrs.padding
    if width == 1 or op.attrs.groups > 1 or op.attrs.dilation[1] > 1 or max(left, right) > 0:
        return False
    return x.view.strides()[2] == channels and vector(x.dtype, channels) * x.dtype.itemsize < 16
