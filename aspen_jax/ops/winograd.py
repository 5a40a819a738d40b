"""Winograd's minimal filtering F(4x4, 3x3): a 3x3 convolution of stride 1 with a quarter of the multiplications.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015. The transforms lose about a decimal digit (the largest
error is about 1e-5 of the largest output), so the pass that chooses it keeps away from convolutions of a higher precision.
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

TILE = 4  # outputs of a patch along each axis
PATCH = TILE + 2  # inputs
POINTS = PATCH * PATCH
COLUMNS = 32  # of a panel of transformed weights

# The transform of three weights to the points 0, 1, -1, 2, -2 and infinity.
WEIGHT_TRANSFORM = np.array(
    [[1 / 4, 0, 0], [-1 / 6] * 3, [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
)

# Additions' worth of the transforms, counted with their loads and stores: of a patch a channel, and of the weights a channel and
# column.
_INPUT_FLOPS, _OUTPUT_FLOPS, _WEIGHT_FLOPS = 400.0, 300.0, 400.0


def transform_weights(w: Any, numpy: Any) -> Any:
    """W [3,3,C,O] as [36, ceil(O/32), C, 32], by the functions of `numpy` (numpy or jax.numpy)."""
    transform = numpy.asarray(WEIGHT_TRANSFORM, w.dtype)
    points = numpy.einsum("ph,hwco->pwco", transform, w)
    points = numpy.einsum("qw,pwco->pqco", transform, points)
    points = numpy.pad(points, ((0, 0), (0, 0), (0, 0), (0, -w.shape[3] % COLUMNS)))
    return points.reshape(POINTS, w.shape[2], -1, COLUMNS).transpose(0, 2, 1, 3)


class WinogradWeights(OpFamily):
    """w [3,3,C,O] -> [36, ceil(O/32), C, 32], float32: a matrix a point of a patch, in panels of 32 columns."""

    name = "winograd_weights"
    kernel = "winograd_weights"

    def num_main(self, op: Op) -> int:
        return 1

    def infer(self, attrs: Any, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        ((shape, dtype),) = inputs
        if len(shape) != 4 or shape[:2] != (3, 3):
            raise ValueError(f"winograd_weights of {shape}")
        return (POINTS, -(-shape[3] // COLUMNS), shape[2], COLUMNS), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = np.empty_like(boxes)
        region[:, :2] = (0, 3)
        region[:, 2] = boxes[:, 2]
        region[:, 3] = np.minimum(boxes[:, 1] * COLUMNS, op.inputs[0].shape[3])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        return (POINTS, 1, 1, COLUMNS)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        matrices = box_sizes(boxes) / POINTS
        return Work(own.flops + _WEIGHT_FLOPS * matrices, own.bytes + 4 * box_sizes(self.main_region(op, 0, boxes)))

    def reference(self, attrs: Any, *inputs: jax.Array) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return transform_weights(inputs[0], jnp)


@dataclasses.dataclass(frozen=True)
class WinogradAttrs(Attrs):
    """Attributes of winograd.

    Attributes:
        padding: (top, bottom, left, right), may be negative.
        columns: output channels; the last panel of the weights may hold more.
    """

    padding: tuple[int, ...]
    columns: int


class Winograd(OpFamily):
    """x [N,H,W,C], transformed weights [36, ceil(O/32), C, 32] -> [N,OH,OW,O], float32."""

    name = "winograd"
    kernel = "winograd"
    takes_epilogue = True
    attrs_type = WinogradAttrs

    def num_main(self, op: Op) -> int:
        return 2

    def infer(self, attrs: WinogradAttrs, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        (x, dtype), (u, _) = inputs
        if len(x) != 4 or u != (POINTS, -(-attrs.columns // COLUMNS), x[3], COLUMNS):
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
            patches = -(-(boxes[:, axis, 1] - boxes[:, axis, 0]) // TILE)
            region[:, axis, 0] = boxes[:, axis, 0] - low
            region[:, axis, 1] = boxes[:, axis, 0] - low + patches * TILE + 2
            np.clip(region[:, axis], 0, x[axis], out=region[:, axis])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        _, height, width, columns = op.output.shape
        return (1, min(TILE, height), min(TILE, width), min(COLUMNS, columns))

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.shape[3] == 1 or operand.view.strides()[3] == 1

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        extents = boxes[:, :, 1] - boxes[:, :, 0]
        patches = extents[:, 0] * -(-extents[:, 1] // TILE) * -(-extents[:, 2] // TILE)
        channels, columns = op.inputs[0].shape[3], extents[:, 3]
        flops = patches * (2.0 * POINTS * channels * columns + _INPUT_FLOPS * channels + _OUTPUT_FLOPS * columns)
        x, u = self.main_region(op, 0, boxes), self.main_region(op, 1, boxes)
        return Work(own.flops + flops, own.bytes + 4 * (box_sizes(x) + box_sizes(u)))

    def reference(self, attrs: WinogradAttrs, *inputs: jax.Array) -> jax.Array:
        x, u = inputs
        # The weights from their transform, by least squares, then the plain convolution.
        inverse = jnp.asarray(np.linalg.pinv(WEIGHT_TRANSFORM), x.dtype)
        points = u.transpose(0, 2, 1, 3).reshape(PATCH, PATCH, x.shape[3], -1)
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
