"""Convolutions in three spatial dimensions, as convolutions in two.

The planes that a tap of the window's depth meets are so many channels more: a plane of the output is a convolution of the planes
that its window covers, side by side, by the window's taps, side by side. So the algorithms for planes serve volumes too; what is
written for it, the input once for each tap of the depth, is little beside the products.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspen_jax.ir.program import Operand
from aspen_jax.ops.concatenate import CONCATENATE, ConcatenateAttrs
from aspen_jax.ops.converters import Builder, Unsupported
from aspen_jax.ops.elementwise import fill
from aspen_jax.ops.layout import reshaped, transposed, viewed
from aspen_jax.ops.pad import PAD, PadAttrs

# Of the window's depth: beyond them, as in gradients of weights, the copies of the input would be more than the memory they save.
MOST_TAPS = 16


class Depth(NamedTuple):
    """How a window goes along the depth of a volume.

    Attributes:
        stride: of the window.
        padding: planes of zeros before and after those of the volume; may be negative.
        lhs_dilation: from plane to plane of the volume, when zeros are between them.
        dilation: from tap to tap of the window.
    """

    stride: int
    padding: tuple[int, int]
    lhs_dilation: int
    dilation: int


def as_planes(build: Builder, x: Operand, w: Operand, depth: Depth, groups: int) -> tuple[Operand, Operand]:
    """What a convolution in two dimensions takes in place of a volume and a window with depth.

    Args:
        build: where to write it.
        x: [N,D,H,W,C], floats.
        w: [KD,KH,KW,C/groups,O], floats.
        depth: how w goes along D.
        groups: of channels.

    Returns:
        [N*OD,H,W,KD*C] and [KH,KW,KD*C/groups,O], both in groups as before.

    Raises:
        Unsupported: the window has too many taps along D.
    """
    taps, height, width, inputs, outputs = w.shape
    if taps > MOST_TAPS:
        raise Unsupported(f"a convolution in three dimensions by a window {taps} deep; at most {MOST_TAPS} are taken")
    low, high = depth.padding
    if (low, high, depth.lhs_dilation) != (0, 0, 1):
        edges = PadAttrs((0, low, 0, 0, 0), (0, high, 0, 0, 0), (0, depth.lhs_dilation - 1, 0, 0, 0))
        x = build.op(PAD, edges, [x, fill(build, np.zeros((), x.dtype), ())])
    batch, extent, rows, columns, channels = x.shape
    planes = max((extent - (taps - 1) * depth.dilation - 1) // depth.stride + 1, 0)
    x = reshaped(build, x, (batch, extent, rows, columns, groups, 1, inputs))
    parts = []
    for tap in range(taps):
        first = tap * depth.dilation if planes else 0
        limit = first + (planes - 1) * depth.stride + 1 if planes else 0
        view = x.view.slice((0, first, *(0,) * 5), (batch, limit, *x.shape[2:]), (1, depth.stride, *(1,) * 5))
        parts.append(viewed(build, x, view))
    x = build.op(CONCATENATE, ConcatenateAttrs(5), parts) if taps > 1 else parts[0]
    x = reshaped(build, x, (batch * planes, rows, columns, channels * taps))
    w = reshaped(build, transposed(build, w, (1, 2, 0, 3, 4)), (height, width, taps * inputs, outputs))
    return x, w
