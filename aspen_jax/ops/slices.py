"""Slices of the depth of a product or convolution: partial sums in float32, which somebody adds up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.ir.view import MAX_RANK
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_slices import CONV2D_SLICES, ConvSlicesAttrs
from aspen_jax.ops.matmul import MATMUL, MatmulAttrs

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# A line of what warpgroups multiply: 32 elements of float32, 64 of 16 bits.
_CHUNK_BYTES = 128


def sliced(op: Op, slices: int, fewest_chunks: int = 1) -> Op | None:
    """The sums of each slice, [slices, *shape] in float32; None where the depth cannot be cut into so many.

    A product becomes one with an outer axis more, a convolution conv2d_slices.

    Args:
        op: a product or convolution. Its epilogue is left out.
        slices: two or more.
        fewest_chunks: of 128 bytes, that a slice has.
    """
    if op.family is MATMUL:
        return _sliced_product(op, slices, fewest_chunks)
    return _sliced_convolution(op, slices, fewest_chunks) if op.family is CONV2D else None


def _sliced_product(op: Op, slices: int, fewest_chunks: int) -> Op | None:
    from aspen_jax.ir.program import Operand

    a, b = op.attrs.a, op.attrs.b
    summed = [label for label in a if label < 0 and op.inputs[0].shape[a.index(label)] > 1]
    if not summed or max(len(each) for each in (a, b, op.output.shape)) >= MAX_RANK:
        return None
    # The one that is walked the slowest: what is left of the depth still has one stride if it had.
    left = op.inputs[0].view
    label = max(summed, key=lambda label: abs(left.strides()[a.index(label)]))
    extent, depth = left.shape[a.index(label)], math.prod(left.shape[a.index(each)] for each in summed)
    if extent % slices or depth < slices * fewest_chunks * _chunk(op):
        return None
    operands, labels = [], []
    for operand, own in zip(op.main_inputs, (a, b), strict=True):
        place = own.index(label)
        view = operand.view.reshape((*operand.shape[:place], slices, extent // slices, *operand.shape[place + 1 :]))
        if view is None:
            return None
        operands.append(Operand(operand.value, view))
        moved = [each + 1 if each >= 0 else each for each in own]
        labels.append((*moved[:place], 0, *moved[place:]))
    return _slices(op, op.replace(attrs=MatmulAttrs(*labels), inputs=tuple(operands)), slices)


def _sliced_convolution(op: Op, slices: int, fewest_chunks: int) -> Op | None:
    x, w = op.main_inputs
    depth, chunk = math.prod(w.shape[:3]), _chunk(op)
    # Taps and channels of the weights must follow each other in memory.
    if op.attrs.groups > 1 or x.dtype != w.dtype or not (w.view.is_dense() or op.rounded):
        return None
    attrs = ConvSlicesAttrs(op.attrs.strides, op.attrs.padding, op.attrs.dilation, 1, slices, chunk)
    if attrs.length(depth) < fewest_chunks * chunk or attrs.length(depth) * (slices - 1) >= depth:
        return None
    return _slices(op, op.replace(family=CONV2D_SLICES, attrs=attrs, inputs=(x, w)), slices)


def _chunk(op: Op) -> int:
    return _CHUNK_BYTES // op.inputs[0].dtype.itemsize


def _slices(op: Op, sliced: Op, slices: int) -> Op:
    from aspen_jax.ir.program import Value

    output = Value((slices, *op.output.shape), np.dtype(np.float32))
    return sliced.replace(output=output, program=None, name=f"{op.name}/slices", slices=1)
