"""Convolutions: products whose rows are pixels, for each group; sliding windows where every channel is one; else by element."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.ops.slices import sliced
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, template, writes
from aspen_jax.targets.cuda.families.conv_by_element import conv_by_element
from aspen_jax.targets.cuda.families.depthwise import depthwise
from aspen_jax.targets.cuda.families.products import matmul, sums_at_once
from aspen_jax.targets.cuda.library.library import or_by_library
from aspen_jax.targets.cuda.products.blocks import block
from aspen_jax.targets.cuda.products.conv_boxes import ConvBoxesShape
from aspen_jax.targets.cuda.products.conv_tile import ConvTileShape
from aspen_jax.targets.cuda.products.pointwise import as_product


@writes("conv2d")
def _conv2d(op: Op) -> Kernel | None:
    x, w = op.inputs[:2]
    if op.attrs.groups > 1 and w.shape[2] == 1 and w.shape[3] == op.attrs.groups and x.dtype == w.dtype:
        return depthwise(op)
    return or_by_library(in_blocks(op) or (conv_by_element(op) if op.slices == 1 else None), op)


def in_blocks(op: Op, run: int | None = None) -> Kernel | None:
    """Write a convolution as a product, of which blocks are multiplied; None where strides forbid it.

    Args:
        op: the convolution.
        run: adjacent sums that are stored at once, or DOWN_COLUMNS; as many as may be by default.
    """
    product = as_product(op)
    kernel = None if product is None else matmul(product, run)
    return kernel or _products(op, run)


@writes("conv2d_slices")
def _products(op: Op, run: int | None = None) -> Kernel | None:
    """Write products of rows that are gathered, or copied in boxes for warpgroups; None where strides forbid it."""
    own = op if op.slices == 1 else sliced(op, op.slices)
    shape = None if own is None else ConvTileShape.of(own)
    if own is None or shape is None:
        return None
    shape = dataclasses.replace(shape, run=sums_at_once(op) if run is None else run)  # what is stored is the op's
    arguments, boxes = [template(shape.core(own)), constant(shape)], ConvBoxesShape.of(own, block(own))
    if boxes is None:
        return Kernel("ConvTile", arguments, shape.run, slices=op.slices)
    return Kernel("ConvInBoxes", [*arguments, constant(boxes)], shape.run, maps=True, slices=op.slices)


def box_of_pixels(op: Op) -> tuple[int, int, int] | None:
    """Images, lines and pixels that are the rows of a block; None where any pixels of a tile can be."""
    boxes = ConvBoxesShape.of(op, block(op)) if as_product(op) is None else None
    return None if boxes is None else (boxes.images, boxes.lines, boxes.pixels)
