"""Winograd's minimal filtering: a 3x3 convolution of stride 1 by patches, with a quarter or 4/9 of the multiplications.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015: F(4x4, 3x3), and F(2x2, 3x3) for small images and many
channels, whose transformed weights are less than half as large. The transforms of the former lose about a decimal digit (the
largest error is about 1e-5 of the largest output), so the pass that chooses one keeps away from convolutions of higher precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.family import OpFamily, Work
from aspen_jax.program import Operand

if TYPE_CHECKING:
    from aspen_jax.program import Op

TILES = (4, 2)  # outputs of a patch along each axis; two inputs more
COLUMNS = 32  # of a panel of transformed weights

# The transforms of three weights to the points 0, 1, -1 (and 2, -2) and infinity.
WEIGHT_TRANSFORMS = {
    2: np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]]),
    4: np.array(
        [[1 / 4, 0, 0], [-1 / 6] * 3, [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
    ),
}

# Additions' worth of the transforms, counted with their loads and stores: a point of a patch and a channel, or a column of the
# weights.
_INPUT_FLOPS, _OUTPUT_FLOPS, _WEIGHT_FLOPS = 17.0, 25.0, 11.0


def _points(tile: int) -> int:
    return (tile + 2) ** 2


def transform_weights(w: Any, tile: int, numpy: Any) -> Any:
    """W [3,3,C,O] as [points, ceil(O/32), C, 32], by the functions of `numpy` (numpy or jax.numpy)."""
    transform = numpy.asarray(WEIGHT_TRANSFORMS[tile], w.dtype)
    points = numpy.einsum("ph,hwco->pwco", transform, w)
    points = numpy.einsum("qw,pwco->pqco", transform, points)
    points = numpy.pad(points, ((0, 0), (0, 0), (0, 0), (0, -w.shape[3] % COLUMNS)))
    return points.reshape(_points(tile), w.shape[2], -1, COLUMNS).transpose(0, 2, 1, 3)


@dataclasses.dataclass(frozen=True)
class WinogradWeightsAttrs(Attrs):
    """Attributes of winograd_weights: the outputs of a patch along each axis, 2 or 4."""

    tile: int


class WinogradWeights(OpFamily):
    """w [3,3,C,O] -> [points, ceil(O/32), C, 32], float32: a matrix a point of a patch, in panels of 32 columns."""

    name = "winograd_weights"
    kernel = "winograd_weights"
    attrs_type = WinogradWeightsAttrs

    def num_main(self, op: Op) -> int:
        return 1

    def infer(self, attrs: Any, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        ((shape, dtype),) = inputs
        if len(shape) != 4 or shape[:2] != (3, 3) or attrs.tile not in TILES:
            raise ValueError(f"winograd_weights of {shape} with {attrs}")
        return (_points(attrs.tile), -(-shape[3] // COLUMNS), shape[2], COLUMNS), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = np.empty_like(boxes)
        region[:, :2] = (0, 3)
        region[:, 2] = boxes[:, 2]
        region[:, 3] = np.minimum(boxes[:, 1] * COLUMNS, op.inputs[0].shape[3])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        return (_points(op.attrs.tile), 1, 1, COLUMNS)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        return Work(own.flops + _WEIGHT_FLOPS * box_sizes(boxes), own.bytes + 4 * box_sizes(self.main_region(op, 0, boxes)))

    def reference(self, attrs: Any, *inputs: jax.Array) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return transform_weights(inputs[0], attrs.tile, jnp)


@dataclasses.dataclass(frozen=True)
class WinogradAttrs(Attrs):
    """Attributes of winograd.

    Attributes:
        padding: (top, bottom, left, right), may be negative.
        columns: output channels; the last panel of the weights may hold more.
        tile: outputs of a patch along each axis, 2 or 4.
    """

    padding: tuple[int, ...]
    columns: int
    tile: int


class Winograd(OpFamily):
    """x [N,H,W,C], transformed weights [points, ceil(O/32), C, 32] -> [N,OH,OW,O], float32."""

    name = "winograd"
    kernel = "winograd"
    takes_epilogue = True
    attrs_type = WinogradAttrs

    def num_main(self, op: Op) -> int:
        return 2

    def infer(self, attrs: WinogradAttrs, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        (x, dtype), (u, _) = inputs
        if len(x) != 4 or attrs.tile not in TILES or u != (_points(attrs.tile), -(-attrs.columns // COLUMNS), x[3], COLUMNS):
            raise ValueError(f"winograd of {x} by {u} to {attrs.columns} channels")
        top, bottom, left, right = attrs.padding
        return (x[0], max(0, x[1] + top + bottom - 2), max(0, x[2] + left + right - 2), attrs.columns), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = np.empty((len(boxes), 4, 2), np.int64)
        if index == 1:
            region[:] = [(0, extent) for extent in op.inputs[1].shape]
            region[:, 1, 0] = boxes[:, 3, 0] // COLUMNS
            region[:, 1, 1] = -(-boxes[:, 3, 1] // COLUMNS)
            return region
        x = op.inputs[0].shape
        region[:, 0] = boxes[:, 0]
        region[:, 3] = (0, x[3])
        # Patches are whole, whatever becomes of their outputs.
        for axis, low in ((1, op.attrs.padding[0]), (2, op.attrs.padding[2])):
            patches = -(-(boxes[:, axis, 1] - boxes[:, axis, 0]) // op.attrs.tile)
            region[:, axis, 0] = boxes[:, axis, 0] - low
            region[:, axis, 1] = boxes[:, axis, 0] - low + patches * op.attrs.tile + 2
            np.clip(region[:, axis], 0, x[axis], out=region[:, axis])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        _, height, width, columns = op.output.shape
        return (1, min(op.attrs.tile, height), min(op.attrs.tile, width), min(COLUMNS, columns))

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.shape[3] == 1 or operand.view.strides()[3] == 1

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        extents = boxes[:, :, 1] - boxes[:, :, 0]
        points = extents[:, 0] * _points(op.attrs.tile)
        for axis in (1, 2):
            points *= -(-extents[:, axis] // op.attrs.tile)
        channels, columns = op.inputs[0].shape[3], extents[:, 3]
        flops = points * (2.0 * channels * columns + _INPUT_FLOPS * channels + _OUTPUT_FLOPS * columns)
        x, u = self.main_region(op, 0, boxes), self.main_region(op, 1, boxes)
        return Work(own.flops + flops, own.bytes + 4 * (box_sizes(x) + box_sizes(u)))

    def reference(self, attrs: WinogradAttrs, *inputs: jax.Array) -> jax.Array:
        x, u = inputs
        # The weights from their transform, by least squares, then the plain convolution.
        inverse = jnp.asarray(np.linalg.pinv(WEIGHT_TRANSFORMS[attrs.tile]), x.dtype)
        points = u.transpose(0, 2, 1, 3).reshape(attrs.tile + 2, attrs.tile + 2, x.shape[3], -1)
        w = jnp.einsum("hp,wq,pqco->hwco", inverse, inverse, points, precision=lax.Precision.HIGHEST)
        top, bottom, left, right = attrs.padding
        return lax.conv_general_dilated(
            x,
            w[..., : attrs.columns],
            (1, 1),
            ((top, bottom), (left, right)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=lax.Precision.HIGHEST,
        )


WINOGRAD_WEIGHTS = WinogradWeights()
WINOGRAD = Winograd()
