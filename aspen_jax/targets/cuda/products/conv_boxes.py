"""Convolutions whose operands the tensor memory accelerator copies in boxes (cuda/kernels/conv_boxes.h).

A block's rows are a box of the output's pixels, and what a tap reads of the input is one too: the same box, moved by the tap's
place, with the convolution's strides as steps. What lies in the padding is outside of the tensor, where there are zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from aspen_jax.ir.program import Op
from aspen_jax.ops.conv_slices import ConvSlicesAttrs
from aspen_jax.targets.cuda.code.vectors import LINE_BYTES, vector, whole
from aspen_jax.targets.cuda.products.kernel_choices import for_warpgroups
from aspen_jax.targets.cuda.products.tensor_maps import MOST_BOX, MOST_STEP, TensorShape

# Boxes may leave lines of a block empty, and chunks may end with a tap, before they are full: for up to a third more
# multiplications threads are spared the copies. Not measured.
_MOST_MORE = 4 / 3

# Of a block's rows, for a box to be as wide as it can be; and into how many more parts an image is cut beside each other, all of
# which are in one tile.
_MOST_EMPTY, _MOST_PARTS = 1 / 8, 3


@dataclasses.dataclass(frozen=True)
class ConvBoxesShape:
    """How a convolution is copied in boxes, as ConvBoxesShape in cuda/kernels/conv_boxes.h.

    Attributes:
        images, lines, pixels: of a box of the output.
        chunks: of a tap's channels.
        chunks_of_slice: in how many the depth, or a slice of it, is gone through.
        maps: the input [C, W, H, N] and the weights [O, C, taps], or along the depth [C, taps, O]; the adjacent elements first.
    """

    images: int
    lines: int
    pixels: int
    chunks: int
    chunks_of_slice: int
    maps: tuple[TensorShape, TensorShape]

    @classmethod
    def of(cls, op: Op, block: tuple[int, int]) -> ConvBoxesShape | None:
        """The boxes of a convolution; None where it cannot be copied so, or is not worth it.

        Args:
            op: a convolution, or slices of one.
            block: rows and columns that a thread block multiplies at once.
        """
        x, w = op.inputs[:2]
        (*_, channels), (kernel_height, kernel_width, _, outputs) = x.shape, w.shape
        shape, taps, strides = op.output.shape[-4:-1], kernel_height * kernel_width, x.view.strides()
        itemsize, line = x.dtype.itemsize, LINE_BYTES // x.dtype.itemsize
        if not (itemsize == 2 and w.view.is_dense()) and not op.rounded:
            return None
        if x.dtype != w.dtype or op.attrs.groups > 1 or not op.output.size:
            return None
        if math.prod(shape) <= 32 or strides[3] != 1 or max(op.attrs.strides) > MOST_STEP:
            return None
        of_weights = vector(w.dtype, channels if op.rounded else outputs)
        if min(vector(x.dtype, channels, *strides[:3], x.view.offset()), of_weights) * itemsize != 16:
            return None
        depth, chunks = taps * channels, -(-channels // line)
        length, chunks_of_slice = depth, taps * chunks
        if isinstance(op.attrs, ConvSlicesAttrs):
            # Slices begin with a chunk.
            length = op.attrs.length(depth)
            chunks_of_slice = length // line
            if channels % line or length % line:
                return None
        if length < line or not for_warpgroups(op):  # then warps multiply it
            return None
        rows, columns = block
        pixels = _box_of_pixels(shape, rows, op.attrs.strides)
        boxes = math.prod(-(-extent // own) for extent, own in zip(shape, pixels, strict=True))
        if boxes * rows * chunks * line * taps > _MOST_MORE * whole(math.prod(shape), rows) * whole(depth, line):
            return None
        input_map, weights_map = _input_map(op, pixels, line), _weights_map(op, columns, line)
        if input_map is None or weights_map is None:
            return None
        return cls(*pixels, chunks, chunks_of_slice, (input_map, weights_map))


def _input_map(op: Op, pixels: tuple[int, int, int], line: int) -> TensorShape | None:
    """The input [C, W, H, N] by boxes of what one tap reads for so many pixels."""
    x, (line_step, pixel_step) = op.inputs[0], op.attrs.strides
    images, height, width, channels = x.shape
    # An axis of one element has no stride; one beyond what is inside it will do.
    extents, strides = (channels, width, height, images), [1]
    for axis in (2, 1, 0):
        strides.append(x.view.strides()[axis] if x.shape[axis] > 1 else strides[-1] * extents[2 - axis])
    box, steps = (line, *reversed(pixels)), (1, pixel_step, line_step, 1)
    return TensorShape.of(0, extents, strides[1:], box, steps, itemsize=x.dtype.itemsize)


def _weights_map(op: Op, columns: int, line: int) -> TensorShape | None:
    """The weights by chunks of a tap's channels and columns: lines lie across the depth, or along it where they are rounded."""
    kernel_height, kernel_width, channels, outputs = op.inputs[1].shape
    taps, itemsize = kernel_height * kernel_width, op.inputs[1].dtype.itemsize
    if op.rounded:
        extents, strides, box = (channels, taps, outputs), (channels, taps * channels), (line, 1, columns)
    else:
        extents, strides, box = (outputs, channels, taps), (outputs, channels * outputs), (line, line, 1)
    return TensorShape.of(1, extents, strides, box, itemsize=itemsize)


@functools.cache
def _box_of_pixels(shape: tuple[int, ...], most: int, strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Images, lines and pixels of a box of at most so many pixels.

    Tiles are cut between images and lines before lines are cut (aspen_jax/cost/tiling.py), and the fewer lines a box has the
    fewer a tile needs to fill it. So it is as wide as it can be with little of a block empty; where none is so, what fills blocks
    best.
    """
    images, height, width = shape
    found, fewest = (1, 1, 1), math.prod(shape) + 1
    fewest_parts = -(-width // min(most, MOST_BOX // strides[1]))
    for parts in range(fewest_parts, min(fewest_parts + _MOST_PARTS, width) + 1):
        across = -(-width // parts)
        down = min(height, most // across, MOST_BOX // strides[0])
        down = -(-height // -(-height // down))  # no line more than as many boxes need
        deep = min(images, most // (across * down)) if down == height else 1
        boxes = -(-width // across) * -(-height // down) * -(-images // deep)
        if boxes < fewest:
            found, fewest = (deep, down, across), boxes
        if boxes * most * (1 - _MOST_EMPTY) <= math.prod(shape):
            break
    return found
