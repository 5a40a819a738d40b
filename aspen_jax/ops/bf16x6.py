"""Convolutions and products of float32 by matrix units for bfloat16: each operand as the sum of three numbers of 16 bits.

A float32 is high + middle + low exactly. Of the nine products of two such sums the six largest are added up in float32: the
algorithm that XLA calls BF16_BF16_F32_X6, and by which accelerators compute JAX's precision HIGHEST (Henry, Tang and Heinecke,
"Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019). What is left out is below
2^-26 of its product, so results are as near to the exact ones as those of float32; but for operands below 1e-33, whose low
parts are subnormal numbers, which the units take for zeros. Infinities and NaNs go where float32 has them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.family import OpFamily, Typed, Work

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

PARTS = 3
DEPTH = 32  # channels of a step
COLUMNS = 32  # of a panel
_ROWS = 16  # of a product of the units

# Operations of six products that take as long as one of float32; and what splitting an element of x (inside a network mostly the
# wait for what the other worker wrote), finishing one of the output and splitting a weight cost beside.
_RATE, _SPLIT_FLOPS, _OUTPUT_FLOPS, _WEIGHT_FLOPS = 2.2, 64.0, 8.0, 10.0

_LARGEST = float(jnp.finfo(jnp.bfloat16).max)


def parts_shape(window: Sequence[int], channels: int, columns: int) -> tuple[int, ...]:
    """The shape of the parts of weights [*window, channels, columns]."""
    return -(-columns // COLUMNS), math.prod(window) * -(-channels // DEPTH), PARTS, 2, DEPTH // 2, COLUMNS


def to_parts(w: Any, numpy: Any) -> Any:
    """W [KH,KW,C,O], float32, as its high, middle and low parts [ceil(O/32), KH * KW * ceil(C/32), 3, 2, 16, 32], bfloat16.

    By the functions of `numpy` (numpy or jax.numpy).
    """
    shape = parts_shape(w.shape[:2], *w.shape[2:])
    taps = math.prod(w.shape[:2])
    w = numpy.pad(w.reshape(taps, *w.shape[2:]), ((0, 0), (0, -w.shape[2] % DEPTH), (0, -w.shape[3] % COLUMNS)))
    # By tap, block of channels, pair, which of the two, panel, half of its columns, column.
    w = w.reshape(taps, w.shape[1] // DEPTH, DEPTH // 2, 2, w.shape[2] // COLUMNS, 2, COLUMNS // 2)
    w = w.transpose(4, 0, 1, 5, 2, 6, 3).reshape(*shape[:2], *shape[3:])
    high = numpy.clip(w, -_LARGEST, _LARGEST).astype(jnp.bfloat16)
    rest = w - high.astype(np.float32)
    middle = numpy.clip(rest, -_LARGEST, _LARGEST).astype(jnp.bfloat16)
    return numpy.stack([high, middle, (rest - middle.astype(np.float32)).astype(jnp.bfloat16)], axis=2)


def from_parts(parts: jax.Array, window: Sequence[int], channels: int, columns: int) -> jax.Array:
    """The sums of the parts as W [KH,KW,C,O]."""
    high, middle, low = (parts[:, :, part].astype(jnp.float32) for part in range(PARTS))
    w = high + (middle + low)
    w = w.reshape(w.shape[0], math.prod(window), -1, 2, DEPTH // 2, COLUMNS // 2, 2).transpose(1, 2, 4, 6, 0, 3, 5)
    w = w.reshape(*window, w.shape[1] * DEPTH, -1)
    return w[:, :, :channels, :columns]


class Bf16x6Weights(OpFamily):
    """w [KH,KW,C,O], float32 -> its parts (`to_parts`), bfloat16."""

    name = "bf16x6_weights"
    kernel = "bf16x6_weights"
    kernel_inputs = 1

    def infer(self, attrs: None, inputs: Sequence[Typed]) -> Typed:
        ((shape, dtype),) = inputs
        if len(shape) != 4 or dtype != np.float32:
            raise ValueError(f"bf16x6_weights of {dtype} {shape}")
        return parts_shape(shape[:2], *shape[2:]), np.dtype(jnp.bfloat16)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = np.empty((len(boxes), 4, 2), np.int64)
        region[:] = [(0, extent) for extent in op.inputs[0].shape]
        region[:, 3] = np.minimum(boxes[:, 0] * COLUMNS, op.inputs[0].shape[3])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        return (1, 1, *op.output.shape[2:])

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        parts = box_sizes(boxes)
        return Work(_WEIGHT_FLOPS * parts / PARTS, (2.0 + 4.0 / PARTS) * parts)

    def reference(self, attrs: None, *inputs: jax.Array) -> jax.Array:
        return to_parts(inputs[0], jnp)


@dataclasses.dataclass(frozen=True)
class Bf16x6Attrs(Attrs):
    """Attributes of bf16x6.

    Attributes:
        window: rows and columns of the weights.
        columns: output channels; the last panel of the weights may hold more.
        strides: as of conv2d, and the following too.
        padding: (top, bottom, left, right), may be negative.
        dilation: of the window.
        groups: 1.
        scaled: whether x is multiplied by a third input before, of x's shape, which is the same for all pixels of an image.
    """

    window: tuple[int, ...]
    columns: int
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    scaled: bool = False


class Bf16x6(OpFamily):
    """x [N,H,W,C], parts of w (`to_parts`) -> [N,OH,OW,O], float32; with a window of one element also without N, or N and H."""

    name = "bf16x6"
    kernel = "bf16x6"
    takes_epilogue = True
    attrs_type = Bf16x6Attrs

    def num_main(self, op: Op) -> int:
        return 3 if op.attrs.scaled else 2

    def infer(self, attrs: Bf16x6Attrs, inputs: Sequence[Typed]) -> Typed:
        (x, dtype), (parts, parts_dtype), *scale = inputs
        if scale != [(x, dtype)] * attrs.scaled or (attrs.scaled and len(x) != 4):
            raise ValueError(f"bf16x6 of {x} scaled by {scale} with {attrs}")
        if (
            not 2 <= len(x) <= 4
            or len(attrs.window) != 2
            or attrs.groups != 1
            or attrs.columns < 1
            or min(*attrs.window, x[-1]) < 1
        ):
            raise ValueError(f"bf16x6 of {x} with {attrs}")
        if parts != parts_shape(attrs.window, x[-1], attrs.columns) or parts_dtype != jnp.bfloat16 or dtype != np.float32:
            raise ValueError(f"bf16x6 of {dtype} {x} by {parts_dtype} {parts} with {attrs}")
        wide = (1,) * (4 - len(x)) + x
        conv = ConvAttrs(attrs.strides, attrs.padding, attrs.dilation, 1)
        output, _ = CONV2D.infer(conv, [(wide, dtype), ((*attrs.window, x[-1], attrs.columns), dtype)])
        if len(x) < 4 and (attrs.window != (1, 1) or output[:3] != wide[:3]):
            raise ValueError(f"bf16x6 of {x} with {attrs}: it is a product of matrices, where windows have one element")
        return output[4 - len(x) :], dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: Bf16x6Attrs = op.attrs
        shape = op.inputs[index].shape
        region = np.empty((len(boxes), len(shape), 2), np.int64)
        region[:] = [(0, extent) for extent in shape]
        if index == 1:
            region[:, 0, 0] = boxes[:, -1, 0] // COLUMNS
            region[:, 0, 1] = -(-boxes[:, -1, 1] // COLUMNS)
            return region
        region[:, :-1] = boxes[:, :-1]
        if len(shape) == 4:
            for axis, low in ((1, attrs.padding[0]), (2, attrs.padding[2])):
                stride, dilation, window = attrs.strides[axis - 1], attrs.dilation[axis - 1], attrs.window[axis - 1]
                region[:, axis, 0] = boxes[:, axis, 0] * stride - low
                region[:, axis, 1] = (boxes[:, axis, 1] - 1) * stride - low + (window - 1) * dilation + 1
                np.clip(region[:, axis], 0, shape[axis], out=region[:, axis])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        *lead, rows, columns = op.output.shape
        return (*(1 for _ in lead), max(1, min(2 * _ROWS, rows)), max(1, min(COLUMNS, columns)))

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.view.is_dense() if index == 1 else operand.shape[-1] == 1 or operand.view.strides()[-1] == 1

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        attrs: Bf16x6Attrs = op.attrs
        own = epilogue_work(op, boxes)
        x, parts = self.main_region(op, 0, boxes), self.main_region(op, 1, boxes)
        extents = boxes[:, :, 1] - boxes[:, :, 0]
        # Lines follow each other with what windows reach beyond them, and are multiplied too where it lies in between.
        beyond = (attrs.window[1] - 1) * attrs.dilation[1] // attrs.strides[1]
        lines = np.prod(extents[:, :-2], axis=1)
        positions = -(-(lines * (extents[:, -2] + beyond) - beyond) // _ROWS) * _ROWS
        columns = (parts[:, 0, 1] - parts[:, 0, 0]) * COLUMNS
        products = 2.0 * positions * columns * op.inputs[1].shape[1] * DEPTH
        split = box_sizes(x) / max(op.inputs[0].shape[-1], 1) * -(-op.inputs[0].shape[-1] // DEPTH) * DEPTH
        flops = products / _RATE + _SPLIT_FLOPS * split + _OUTPUT_FLOPS * positions * columns
        return Work(own.flops + flops, own.bytes + 4 * box_sizes(x) + 2 * box_sizes(parts))

    def reference(self, attrs: Bf16x6Attrs, *inputs: jax.Array) -> jax.Array:
        x, parts, *scale = inputs
        for factor in scale:
            x = x * factor
        wide = x.reshape((1,) * (4 - x.ndim) + x.shape)
        w = from_parts(parts, attrs.window, x.shape[-1], attrs.columns)
        output = CONV2D.reference(ConvAttrs(attrs.strides, attrs.padding, attrs.dilation, 1), wide, w)
        return output.reshape(output.shape[4 - x.ndim :])


BF16X6_WEIGHTS = Bf16x6Weights()
BF16X6 = Bf16x6()
