"""Convolutions that are products of elements, where a side is a mask: it selects, as in other products (ops/masks.py).

XLA takes a convolution for a product where each output channel has one input channel, and the window has one tap or covers the
image. It transposes both sides first, mostly. It finds a mask where that moves no element, so the order of dimensions counts.
"""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Operand
from aspen_jax.ops import masks, windows
from aspen_jax.ops.converters import Builder, Equation
from aspen_jax.ops.layout import reshaped, transposed
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs


def selection(build: Builder, equation: Equation, lhs: Operand, rhs: Operand) -> Operand | None:
    """The convolution as a sum of what its mask selects; None for convolutions without a mask, and those that are no product."""
    if {lhs.dtype, rhs.dtype, equation.dtype} != {np.dtype(np.float32)} or not _is_product(equation, lhs, rhs):
        return None
    numbers = equation.params["dimension_numbers"]
    batch, feature, *image = numbers.lhs_spec
    out_channel, in_channel, *window = numbers.rhs_spec
    orders = (batch, *image, feature), (in_channel, *window, out_channel)
    is_whole = lhs.shape == rhs.shape and lhs.shape[batch] == lhs.shape[feature] == 1
    mask, value = None, rhs
    if is_whole or list(orders[0]) == sorted(orders[0]) or all(rhs.shape[place] == 1 for place in window):
        mask = masks.mask_of(build, lhs)
    if mask is None and is_whole:
        mask, value, orders = masks.mask_of(build, rhs), lhs, orders[::-1]
    if mask is None:
        return None
    mask, value = transposed(build, mask, orders[0]), transposed(build, value, orders[1])
    repeated = Operand(value.value, value.view.broadcast_in_dim(mask.shape, tuple(range(len(mask.shape)))))
    y = masks.selected(build, mask, repeated)
    summed = tuple(axis + 1 for axis, place in enumerate(window) if rhs.shape[place] > 1)
    if summed:
        y = build.op(REDUCE, ReduceAttrs(windows.SUM, summed), [y])
    out_batch, out_feature, *out_image = numbers.out_spec
    order = (out_batch, *out_image, out_feature)
    y = reshaped(build, y, tuple(equation.shape[axis] for axis in order))
    return transposed(build, y, tuple(order.index(axis) for axis in range(len(order))))


def _is_product(equation: Equation, lhs: Operand, rhs: Operand) -> bool:
    """Whether each element of the output is a product, or a sum of products over the whole image."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    groups = params["feature_group_count"]
    steps = (*params["window_strides"], *params["lhs_dilation"], *params["rhs_dilation"])
    channels = (lhs.shape[numbers.lhs_spec[1]], rhs.shape[numbers.rhs_spec[0]])
    window = (rhs.shape[place] for place in numbers.rhs_spec[2:])
    outputs = (equation.shape[place] for place in numbers.out_spec[2:])
    return (
        max(steps, default=1) == 1
        and not any(map(any, params["padding"]))
        and params["batch_group_count"] == 1
        and channels == (groups, groups)
        and all(1 in pair for pair in zip(window, outputs, strict=True))
        and 0 not in lhs.shape
    )
