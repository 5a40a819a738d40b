"""Convolutions as products of gathered rows (cuda/kernels/conv_tile.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op, Operand
from aspen_jax.ops.conv_slices import ConvSlicesAttrs
from aspen_jax.targets.cuda.code.kernel import Strides
from aspen_jax.targets.cuda.code.vectors import vector
from aspen_jax.targets.cuda.families.products import sums_at_once
from aspen_jax.targets.cuda.products.cores import Core, block_core, core
from aspen_jax.targets.cuda.products.window import Taps, Window

# With fewer channels a group, in or out, most of what tensor cores multiply would be nothing.
FEWEST_CHANNELS = 4

# Groups of no more columns are multiplied in blocks of so many.
NARROW = 32


@dataclasses.dataclass(frozen=True)
class ConvTileShape:
    """How a convolution is multiplied in blocks, as ConvTileShape in cuda/kernels/conv_tile.h.

    Attributes:
        window: what a row is gathered from. The taps of a line may be one.
        groups: of channels.
        channels: of a group of the input, or of taps that are one.
        tap: of the depth that a tap takes: its channels and zeros.
        outputs: channels of all groups.
        depth: what is summed.
        slice: so much of the depth is a slice; 0: there are no slices.
        input: strides of images, lines, pixels and channels.
        input_vector: adjacent elements of the input that may be read at once; 1 where channels are not adjacent, as in NCHW.
        weights_vector: adjacent elements of the weights that may be read at once.
        weights_along_depth: whether those lie along the depth, or are outputs.
        run: adjacent sums that are stored at once, or DOWN_COLUMNS (targets/cuda/families/products.py).
    """

    window: Window
    groups: int
    channels: int
    tap: int
    outputs: int
    depth: int
    slice: int
    input: Strides
    input_vector: int
    weights_vector: int
    weights_along_depth: bool
    run: int

    @classmethod
    def of(cls, op: Op, *, fills: bool = True) -> ConvTileShape | None:
        """The shape of a convolution; None where strides forbid it, nothing is summed, or a group has too few channels.

        Args:
            op: a convolution, or slices of one.
            fills: whether there may be zeros in the depth.
        """
        x, w = op.inputs[:2]
        kernel_height, kernel_width, channels, outputs = w.shape
        strides, groups, depth = list(x.view.strides()), op.attrs.groups, kernel_height * kernel_width * channels
        if x.dtype != w.dtype or not (op.rounded or is_walked(w)) or not depth:
            return None
        if x.shape[3] == 1:
            strides[3] = 1  # a channel is adjacent to itself
        if groups > 1 and min(channels, outputs // groups) < FEWEST_CHANNELS:
            return None
        taps = Taps.of(op, fills=fills)
        return cls(
            dataclasses.replace(Window.of(op), kernel_width=taps.width),
            groups,
            taps.channels,
            taps.length,
            outputs,
            kernel_height * taps.width * taps.length,
            op.attrs.length(depth) if isinstance(op.attrs, ConvSlicesAttrs) else 0,
            Strides(4, tuple(strides)),
            taps.vector,
            vector(w.dtype, *((depth,) if op.rounded else (outputs, outputs // groups)), w.view.offset()),
            op.rounded,
            sums_at_once(op),
        )

    def core(self, op: Op) -> Core:
        """What multiplies."""
        *_, images, height, width, _ = op.output.shape
        pixels, of_group = images * height * width, self.outputs // self.groups
        if self.groups > 1 and of_group <= NARROW:
            return core(op, pixels, columns=NARROW, warps=4 if pixels > 16 else 2)
        vectors, along_depth = min(self.input_vector, self.weights_vector), self.weights_along_depth
        return block_core(op, pixels, self.slice or self.depth, vectors, along_depth=along_depth)


def is_walked(weights: Operand) -> bool:
    """Whether a walk along the depth finds the weights of one column one row after the other, and columns are adjacent."""
    *_, outputs = weights.shape
    strides = weights.view.strides()
    expected, follows = outputs, strides[3] == 1 or outputs == 1
    for extent, stride in reversed([*zip(weights.shape, strides, strict=True)][:3]):
        follows = follows and (extent == 1 or stride == expected)
        expected *= extent
    return follows
