"""Convolutions whose operands the tensor memory accelerator copies in boxes (PixelBoxes in cuda/kernels/tensor_copy.h).

A block's rows are a box of the output's pixels, and what a tap reads of the input is one too: the same box, moved by the tap's
place, with the convolution's strides as steps. What lies in the padding is outside of the tensor, where there are zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from aspen_jax.cuda.blocks import block, whole
from aspen_jax.cuda.cores import block_core
from aspen_jax.cuda.products import COPIED_IN_BOXES, tile
from aspen_jax.cuda.tensor_maps import LINE, MOST_BOX, MOST_STEP, Tensor, is_allowed
from aspen_jax.cuda.vectors import vector
from aspen_jax.ir.program import Op
from aspen_jax.ops.conv_slices import ConvSlicesAttrs

# Boxes may leave lines of a block empty, and chunks may end with a tap, before they are full: for up to a third more
# multiplications threads are spared the copies. Not measured.
_MOST_MORE = 4 / 3

# Of a block's rows, for a box to be as wide as it can be; and into how many more parts an image is cut beside each other, all of
# which are in one tile.
_MOST_EMPTY, _MOST_PARTS = 1 / 8, 3


@dataclasses.dataclass(frozen=True)
class ConvBoxes:
    """How a convolution is copied in boxes.

    Attributes:
        pixels: images, lines and pixels of a box of the output.
        maps: the input [C, W, H, N] and the weights [O, C, taps], the adjacent elements first.
        chunks: of a tap's channels.
        chunks_of_slice: in how many the depth, or a slice of it, is gone through.
    """

    pixels: tuple[int, int, int]
    maps: tuple[Tensor, Tensor]
    chunks: int
    chunks_of_slice: int


def conv_boxes(op: Op) -> ConvBoxes | None:
    """How a convolution, or slices of one, is copied where a GPU has warpgroups; None where it cannot be, or is not worth it."""
    x, w = op.inputs[:2]
    attrs = op.attrs
    (images, height, width, channels), (kernel_height, kernel_width, _, outputs) = x.shape, w.shape
    shape, taps = op.output.shape[-4:-1], kernel_height * kernel_width
    if x.dtype.itemsize != 2 or x.dtype != w.dtype or attrs.groups > 1 or not op.output.size or not w.view.is_dense():
        return None
    strides = x.view.strides()
    if math.prod(shape) <= 32 or strides[3] != 1 or max(attrs.strides) > MOST_STEP:
        return None
    if min(vector(x.dtype, channels, *strides[:3], x.view.offset()), vector(w.dtype, outputs)) != 8:
        return None
    depth, chunks = taps * channels, -(-channels // LINE)
    length, chunks_of_slice = depth, taps * chunks
    if isinstance(attrs, ConvSlicesAttrs):
        # Slices begin with a chunk.
        length = attrs.length(depth)
        chunks_of_slice = length // LINE
        if channels % LINE or length % LINE:
            return None
    if length < LINE:  # then BlockCore leaves it to warps
        return None
    rows = block(op)[0]
    pixels = _box_of_pixels(shape, rows, attrs.strides)
    boxes = math.prod(-(-extent // own) for extent, own in zip(shape, pixels, strict=True))
    if boxes * rows * chunks * LINE * taps > _MOST_MORE * whole(math.prod(shape), rows) * whole(depth, LINE):
        return None
    # An axis of one element has no stride; one beyond what is inside it will do.
    extents, map_strides = (channels, width, height, images), [1]
    for axis in (2, 1, 0):
        map_strides.append(strides[axis] if x.shape[axis] > 1 else map_strides[-1] * extents[2 - axis])
    line_stride, pixel_stride = attrs.strides
    maps = (
        Tensor(0, extents, tuple(map_strides[1:]), (LINE, *reversed(pixels)), 0, steps=(1, pixel_stride, line_stride, 1)),
        Tensor(1, (outputs, channels, taps), (outputs, channels * outputs), (LINE, LINE, 1), 1),
    )
    return ConvBoxes(pixels, maps, chunks, chunks_of_slice) if all(map(is_allowed, maps)) else None


@functools.cache
def _box_of_pixels(shape: tuple[int, ...], most: int, strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Images, lines and pixels of a box of at most so many pixels.

    Tiles are cut between images and lines before lines are cut (aspen_jax/apu/tiling.py), and the fewer lines a box has the
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


def tile_by_boxes(op: Op, boxes: ConvBoxes) -> str:
    """The tile function for GPUs with warpgroups."""
    attrs, rank, slices = op.attrs, len(op.output.shape), isinstance(op.attrs, ConvSlicesAttrs)
    n, y, x, c = range(rank - 4, rank)
    deep, down, across = boxes.pixels
    top, _, left, _ = attrs.padding
    kernel_height, kernel_width, *_ = op.inputs[1].shape
    loop = f"""\
    const int parts = (box[{rank + c}] - box[{c}] + Core::kColumns - 1) / Core::kColumns;
    const int across = (box[{rank + x}] - box[{x}] + {across - 1}) / {across};
    const int down = (box[{rank + y}] - box[{y}] + {down - 1}) / {down};
    const int deep = (box[{rank + n}] - box[{n}] + {deep - 1}) / {deep};
    for (int part = 0; part < parts * across * down * deep{f" * (box[{rank}] - box[0])" if slices else ""}; ++part) {{
      const int first_column = box[{c}] + part % parts * Core::kColumns;
      const int first_x = box[{x}] + part / parts % across * {across};
      const int first_y = box[{y}] + part / parts / across % down * {down};
      const int first_image = box[{n}] + part / parts / across / down{" % deep" if slices else ""} * {deep};"""
    first_chunk, chunks = "0", str(boxes.chunks_of_slice)
    if slices:
        first_chunk, chunks = "first_chunk", f"min_of({chunks}, {kernel_height * kernel_width * boxes.chunks} - first_chunk)"
        loop += f"""
      const int slice = box[0] + part / parts / across / down / deep, first_chunk = slice * {boxes.chunks_of_slice};"""
    lines = deep * down * across
    kinds = f"{boxes.chunks}, {kernel_width}, {attrs.dilation[0]}, {attrs.dilation[1]}"
    corner = f"first_x * {attrs.strides[1]} - {left}, first_y * {attrs.strides[0]} - {top}, first_image"
    operands = f"""\
      const PixelBoxes<{lines}, {kinds}> rows{{buffers.maps[0], {corner}, {first_chunk}}};
      const TapBoxes<{boxes.chunks}> columns{{buffers.maps[1], first_column, {first_chunk}}};"""
    at = [f"first_image + row / {down * across}", f"first_y + row / {across} % {down}", f"first_x + row % {across}"]
    coordinates = f"""\
int at[] = {{{", ".join([*(["slice"] if slices else []), *at, "first_column + column"])}}};
        if (at[{n}] >= box[{rank + n}] || at[{y}] >= box[{rank + y}] || at[{x}] >= box[{rank + x}]) return;"""
    multiplies = block_core(op, math.prod(op.output.shape[n:c]), boxes.chunks_of_slice * LINE, 8)
    num_columns = f"min_of(box[{rank + c}] - first_column, Core::kColumns)"
    return tile(op, multiplies, operands, loop, str(lines), num_columns, f"{chunks} * {LINE}", coordinates, c, COPIED_IN_BOXES)
