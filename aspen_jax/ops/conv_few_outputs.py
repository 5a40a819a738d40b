"""Convolutions to a few channels: the last layer of networks that write images, masks or heat maps.

A product of few columns leaves most lanes of a vector idle. The taps of a row of the window are taken as columns of their own,
each with all output channels, so that a column of taps remains as the window; each output element is then the sum of what its
taps, which lie beside each other, have of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aspen_jax.ir.program import Operand
from aspen_jax.ops.block_program import BlockBuilder
from aspen_jax.ops.converters import Builder
from aspen_jax.ops.layout import reshaped, transposed

# Of output channels: beyond them lanes are used well enough. Of input channels: fewer have a way of their own, by which lanes are
# taps. Of taps of a row: two or one leave too little to gain, and a sum of more operands no longer pays.
MOST_CHANNELS = 8
LEAST_INPUTS = 16
LEAST_TAPS = 3
MOST_TAPS = 20


def takes(x: Operand, w: Operand, padding: Sequence[tuple[int, int]], dilation: int) -> bool:
    """Whether `by_columns` is right and faster for a convolution with steps of one across and one group."""
    _, taps, inputs, outputs = w.shape
    is_wide = x.shape[2] + sum(padding[1]) > (taps - 1) * dilation  # else it has no column
    return is_wide and LEAST_TAPS <= taps <= MOST_TAPS and inputs >= LEAST_INPUTS and outputs <= MOST_CHANNELS


def by_columns(
    build: Builder,
    x: Operand,
    w: Operand,
    padding: Sequence[tuple[int, int]],
    dilation: int,
    convolve: Callable[[Operand, Operand, Sequence[tuple[int, int]]], Operand],
) -> Operand:
    """The convolution of x, [N,H,W,C], by w, [KH,KW,C,O], as a convolution by [KH,1,C,KW*O] and a sum.

    Args:
        build: where to write it.
        x: floats, of which `convolve` makes float32.
        w: floats.
        padding: before and after, down and across.
        dilation: from tap to tap across.
        convolve: writes the convolution of x by w, with this padding down and across.

    Returns:
        [N,OH,OW,O].
    """
    height, taps, channels, outputs = w.shape
    w = reshaped(build, transposed(build, w, (0, 2, 1, 3)), (height, 1, channels, taps * outputs))
    parts = convolve(x, w, padding)
    batch, rows, cols, _ = parts.shape
    cols -= dilation * (taps - 1)
    terms = [
        Operand(
            parts.value,
            parts.view.slice((0, 0, tap * dilation, tap * outputs), (batch, rows, tap * dilation + cols, (tap + 1) * outputs)),
        )
        for tap in range(taps)
    ]
    block = BlockBuilder(taps)
    total = block.input(0)
    for tap in range(1, taps):
        total = block.emit("add_f", total, block.input(tap))
    return build.block(block.build(total), terms, (batch, rows, cols, outputs), parts.dtype)
