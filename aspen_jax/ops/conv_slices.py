"""Convolution whose sums are cut into slices of the depth: for devices that have more places for tiles than it has outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.conv import CONV2D, Conv2D, ConvAttrs
from aspen_jax.ops.family import PRODUCT_COLUMNS, Typed, Work

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ConvSlicesAttrs(ConvAttrs):
    """Attributes of conv2d_slices: those of conv2d, of one group, how many slices there are, and where they may begin.

    Attributes:
        slices: of the depth.
        chunk: slices begin at multiples of so many elements: what a GPU multiplies at once.
    """

    slices: int
    chunk: int

    def length(self, depth: int) -> int:
        """Elements of a slice of the depth; the last ones have what is left."""
        return -(-depth // (self.slices * self.chunk)) * self.chunk


class Conv2DSlices(Conv2D):
    """x [N,H,W,C] * w [KH,KW,C,O] -> [S,N,OH,OW,O], whose sum over the slices S is the convolution.

    The depth runs over taps and channels in the order of w. Kernels are those of GPUs alone.
    """

    name = "conv2d_slices"
    kernel = "conv2d_slices"
    takes_epilogue = False
    alike_everywhere = False  # where a box lies says what is summed
    weight_inputs = ()
    attrs_type = ConvSlicesAttrs

    def infer(self, attrs: ConvSlicesAttrs, inputs: Sequence[Typed]) -> Typed:
        if attrs.groups != 1 or min(attrs.slices, attrs.chunk) < 1:
            raise ValueError(f"conv2d_slices with {attrs}")
        shape, _ = CONV2D.infer(attrs, inputs)
        return (attrs.slices, *shape), np.dtype(np.float32)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        return super().main_region(op, index, boxes[:, 1:])

    def grain(self, op: Op) -> tuple[int, ...]:
        return (1, 1, 1, 1, min(PRODUCT_COLUMNS, op.output.shape[4]))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        depth = math.prod(self.kernel_shape(op)[:3])
        length = op.attrs.length(depth)
        share = np.minimum((boxes[:, 0, 1] - boxes[:, 0, 0]) * length / max(depth, 1), 1.0)
        read = sum(box_sizes(self.main_region(op, index, boxes)) for index in range(2))
        flops = 2.0 * box_sizes(boxes) * length
        return Work(own.flops + flops, own.bytes + op.inputs[0].dtype.itemsize * read * share)

    def reference(self, attrs: ConvSlicesAttrs, *inputs: jax.Array) -> jax.Array:
        x, w = inputs
        depth = math.prod(w.shape[:3])
        length = attrs.length(depth)
        place = jnp.arange(depth).reshape(*w.shape[:3], 1) // max(length, 1)
        whole = ConvAttrs(attrs.strides, attrs.padding, attrs.dilation, attrs.groups)
        return jnp.stack([CONV2D.reference(whole, x, jnp.where(place == s, w, 0)) for s in range(attrs.slices)])


CONV2D_SLICES = Conv2DSlices()
