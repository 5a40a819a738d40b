"""Winograd's minimal filtering: a convolution of stride 1 by patches, with a half to a sixth of the multiplications.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015: F(4x4, 3x3), F(2x2, 3x3) for small images and many
channels, whose transformed weights are less than half as large, and the like for other windows; where a window has one row or one
column, that axis is left alone. The transforms lose a decimal digit (up to 2e-5 of the largest output are lost), so the pass that
chooses one keeps away from convolutions of higher precision. They mix what a patch reads. So the taps themselves are stored
behind the transformed weights: by them the kernel computes each patch with a pixel that is not finite, or larger than another by
2^12. A column whose taps lie so far apart is NaN at all points, and all of its patches are computed directly.

A convolution of another stride is one of stride 1 on the phases of its input: the channels of each stride x stride square of
pixels side by side. Its window is then as many squares as the weights touch, with zeros for what they do not. Where the first
row or column of the window is zero for a phase, its transform is zero at the first point, 0; where the last one is, at the last
point, infinity: these products are left out. A 3x3 window of stride 2 takes 81 for 4x4 outputs and a channel, where the direct
way takes 144.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.toom_cook import weight_transform

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# By window: outputs of a patch, down and across; a patch has as many inputs as these and the window together, less one.
TILES: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {
    (2, 2): ((4, 4), (3, 3), (2, 2)),
    (3, 3): ((4, 4), (3, 3), (2, 2)),
    (4, 4): ((4, 4), (2, 2)),
    (5, 5): ((4, 4), (2, 2)),
    (1, 3): ((1, 4), (1, 2)),
    (3, 1): ((4, 1), (2, 1)),
    (1, 5): ((1, 4),),
    (5, 1): ((4, 1),),
    (1, 7): ((1, 6), (1, 4)),
    (7, 1): ((6, 1), (4, 1)),
}
COLUMNS = 32  # of a panel of transformed weights

# Additions' worth of the transforms, counted with their loads and stores: a point of a patch and a channel, or a column of the
# weights.
_INPUT_FLOPS, _OUTPUT_FLOPS, _WEIGHT_FLOPS = 17.0, 25.0, 11.0


def _points(window: Sequence[int], tile: Sequence[int]) -> int:
    return math.prod(taps + outputs - 1 for taps, outputs in zip(window, tile, strict=True))


def transform_weights(w: Any, tile: Sequence[int], numpy: Any) -> Any:
    """W [KH,KW,C,O] as [points, C, O], by the functions of `numpy` (numpy or jax.numpy)."""
    down, across = (
        numpy.asarray(weight_transform(outputs, taps), w.dtype) for outputs, taps in zip(tile, w.shape[:2], strict=True)
    )
    points = numpy.einsum("ph,hwco->pwco", down, w)
    points = numpy.einsum("qw,pwco->pqco", across, points)
    return points.reshape(len(down) * len(across), *w.shape[2:])


# How far apart the taps of a column may lie, and what taps of zeros count as; cpu/winograd_weights.cc has the same.
_MOST_APART, _OF_ZEROS = 2.0**12, 2.0**16


def are_spoilt(w: Any, numpy: Any) -> Any:
    """Which columns of w [KH,KW,C,O] the transforms would spoil, by the largest weight of each tap: [O]."""
    largest = abs(w).max(axis=2, initial=0).reshape(-1, w.shape[3])
    most, least = largest.max(axis=0), numpy.where(largest > 0, largest, _OF_ZEROS).min(axis=0)
    return ~((most <= least * _MOST_APART) & (most < numpy.inf))


def with_taps(points: Any, w: Any, numpy: Any) -> Any:
    """Transformed weights [points, C, O] and w [KH,KW,C,O], of which they were made, as [points + KH * KW, C, O]."""
    points = numpy.where(are_spoilt(w, numpy), numpy.float32(numpy.nan), points)
    return numpy.concatenate([points, w.reshape(-1, *w.shape[2:])])


def in_panels(points: Any, numpy: Any) -> Any:
    """Transformed weights [points, C, O] as [points, ceil(O/32), C, 32], by the functions of `numpy`."""
    points = numpy.pad(points, ((0, 0), (0, 0), (0, -points.shape[2] % COLUMNS)))
    return points.reshape(*points.shape[:2], -1, COLUMNS).transpose(0, 2, 1, 3)


class PhasedWindow(NamedTuple):
    """A window along one axis, on the phases of its input.

    Attributes:
        begin: the phases before this one have no weights in the first square.
        squares: how many the weights touch, which are the taps of the window.
        end: the phases from this one on have no weights in the last square.
    """

    begin: int
    squares: int
    end: int


def phased_window(taps: int, stride: int, low: int) -> PhasedWindow:
    """What a window of so many taps, for this stride and padding before the input, is on the phases of the input."""
    begin = -low % stride
    squares = -(-(taps + begin) // stride)
    return PhasedWindow(begin, squares, begin + taps - (squares - 1) * stride)


def phased_weights(w: np.ndarray, strides: Sequence[int], low: Sequence[int]) -> np.ndarray:
    """W [KH,KW,C,O] of a convolution of these strides and padding before as that of stride 1 on the phases of its input."""
    windows = map(phased_window, w.shape[:2], strides, low)
    zeros = [(window.begin, stride - window.end) for window, stride in zip(windows, strides, strict=True)]
    w = np.pad(w, (*zeros, (0, 0), (0, 0)))
    down, across = strides
    w = w.reshape(w.shape[0] // down, down, w.shape[1] // across, across, *w.shape[2:]).transpose(0, 2, 1, 3, 4, 5)
    return w.reshape(*w.shape[:2], -1, w.shape[5])


def phased(x: Any, phases: Sequence[int], numpy: Any) -> Any:
    """X [N,H,W,C] as [N, ceil(H/down), ceil(W/across), down * across * C], by the functions of `numpy`."""
    down, across = phases
    x = numpy.pad(x, ((0, 0), (0, -x.shape[1] % down), (0, -x.shape[2] % across), (0, 0)))
    images, height, width, channels = x.shape
    x = x.reshape(images, height // down, down, width // across, across, channels).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(*x.shape[:3], down * across * channels)


@dataclasses.dataclass(frozen=True)
class WinogradWeightsAttrs(Attrs):
    """Attributes of winograd_weights: the outputs of a patch, down and across."""

    tile: tuple[int, ...]


class WinogradWeights(OpFamily):
    """w [KH,KW,C,O] -> [points + KH * KW, ceil(O/32), C, 32], float32: a matrix a point, then a tap, in panels of 32 columns."""

    name = "winograd_weights"
    kernel = "winograd_weights"
    kernel_inputs = 1
    attrs_type = WinogradWeightsAttrs

    def infer(self, attrs: Any, inputs: Sequence[Typed]) -> Typed:
        ((shape, dtype),) = inputs
        if len(shape) != 4 or attrs.tile not in TILES.get(shape[:2], ()):
            raise ValueError(f"winograd_weights of {shape} with {attrs}")
        return (_points(shape[:2], attrs.tile) + math.prod(shape[:2]), -(-shape[3] // COLUMNS), shape[2], COLUMNS), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = np.empty_like(boxes)
        region[:, :2] = [(0, taps) for taps in op.inputs[0].shape[:2]]
        region[:, 2] = (0, op.inputs[0].shape[2])
        region[:, 3] = np.minimum(boxes[:, 1] * COLUMNS, op.inputs[0].shape[3])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        return (op.output.shape[0], 1, max(op.output.shape[2], 1), COLUMNS)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        return Work(own.flops + _WEIGHT_FLOPS * box_sizes(boxes), own.bytes + 4 * box_sizes(self.main_region(op, 0, boxes)))

    def reference(self, attrs: Any, *inputs: jax.Array) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return in_panels(with_taps(transform_weights(inputs[0], attrs.tile, jnp), inputs[0], jnp), jnp)


@dataclasses.dataclass(frozen=True)
class WinogradAttrs(Attrs):
    """Attributes of winograd.

    Attributes:
        padding: (top, bottom, left, right) of the phases, may be negative.
        columns: output channels; the last panel of the weights may hold more.
        window: rows and columns of the weights.
        tile: outputs of a patch, down and across.
        phases: pixels of the input, down and across, whose channels make one pixel.
        begin: the phases before these, down and across, have no weights in the first row, or column, of the window.
        end: the phases from these on have none in its last.
    """

    padding: tuple[int, ...]
    columns: int
    window: tuple[int, ...]
    tile: tuple[int, ...]
    phases: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def points(self) -> int:
        """Elements of a transformed patch."""
        return _points(self.window, self.tile)

    def weighted(self, axis: int) -> np.ndarray:
        """Whether a phase has weights at a point of this axis, [points, phases] of bool."""
        weighted = np.ones((self.window[axis] + self.tile[axis] - 1, self.phases[axis]), bool)
        weighted[0, : self.begin[axis]] = False
        weighted[-1, self.end[axis] :] = False
        return weighted

    @property
    def products(self) -> int:
        """Multiplications for one patch, one output channel and one channel of x."""
        return math.prod(int(self.weighted(axis).sum()) for axis in (0, 1))

    def order(self, channels: int) -> np.ndarray:
        """The channels of the phases of an input of so many, [points, phases * C]: at each point those with weights first."""
        weighted = np.einsum("pi,qj->pqij", self.weighted(0), self.weighted(1)).reshape(self.points, -1)
        return np.argsort(~np.repeat(weighted, channels, axis=1), axis=1, kind="stable")

    def phased(self, x: Sequence[int]) -> tuple[int, ...]:
        """The shape of the phases of an input of this shape."""
        down, across = self.phases
        return x[0], -(-x[1] // down), -(-x[2] // across), x[3] * down * across


class Winograd(OpFamily):
    """x [N,H,W,C], weights [points + taps, ceil(O/32), phases * C, 32] -> [N,OH,OW,O], float32.

    The weights of each point are in the order of `WinogradAttrs.order`, those of taps in that of the phases.
    """

    name = "winograd"
    kernel = "winograd"
    kernel_inputs = 2
    takes_epilogue = True
    attrs_type = WinogradAttrs

    def infer(self, attrs: WinogradAttrs, inputs: Sequence[Typed]) -> Typed:
        (x, dtype), (u, _) = inputs
        two = len(attrs.phases) == len(attrs.begin) == len(attrs.end) == 2
        if len(x) != 4 or not two or attrs.tile not in TILES.get(attrs.window, ()):
            raise ValueError(f"winograd of {x} by {u} with {attrs}")
        for axis, (phases, begin, end) in enumerate(zip(attrs.phases, attrs.begin, attrs.end, strict=True)):
            if not (0 <= begin < phases and 1 <= end <= phases and attrs.weighted(axis).any(axis=1).all()):
                raise ValueError(f"winograd with {attrs}: phases {begin} and {end} of {phases} leave a point without weights")
        if u != (attrs.points + math.prod(attrs.window), -(-attrs.columns // COLUMNS), attrs.phased(x)[3], COLUMNS):
            raise ValueError(f"winograd of {x} by {u} with {attrs}")
        x = attrs.phased(x)
        (down, across), (top, bottom, left, right) = attrs.window, attrs.padding
        return (x[0], max(0, x[1] + top + bottom + 1 - down), max(0, x[2] + left + right + 1 - across), attrs.columns), dtype

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
        attrs: WinogradAttrs = op.attrs
        for axis, low, taps, tile, phases in zip((1, 2), attrs.padding[::2], attrs.window, attrs.tile, attrs.phases, strict=True):
            patches = -(-(boxes[:, axis, 1] - boxes[:, axis, 0]) // tile)
            region[:, axis, 0] = (boxes[:, axis, 0] - low) * phases
            region[:, axis, 1] = (boxes[:, axis, 0] - low + patches * tile + taps - 1) * phases
            np.clip(region[:, axis], 0, x[axis], out=region[:, axis])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        _, height, width, columns = op.output.shape
        down, across = op.attrs.tile
        return (1, min(down, height), min(across, width), min(COLUMNS, columns))

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.shape[3] == 1 or operand.view.strides()[3] == 1

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        extents = boxes[:, :, 1] - boxes[:, :, 0]
        attrs: WinogradAttrs = op.attrs
        patches = extents[:, 0] * 1.0
        for axis, tile in zip((1, 2), attrs.tile, strict=True):
            patches *= -(-extents[:, axis] // tile)
        channels, columns = op.inputs[1].shape[2], extents[:, 3]
        products = attrs.products * op.inputs[0].shape[3]
        transforms = attrs.points * (_INPUT_FLOPS * channels + _OUTPUT_FLOPS * columns)
        flops = patches * (2.0 * products * columns + transforms)
        x = self.main_region(op, 0, boxes)
        weights = products * COLUMNS * (-(-boxes[:, 3, 1] // COLUMNS) - boxes[:, 3, 0] // COLUMNS)
        return Work(own.flops + flops, own.bytes + 4 * (box_sizes(x) + weights))

    def reference(self, attrs: WinogradAttrs, *inputs: jax.Array) -> jax.Array:
        x, u = inputs
        x = phased(x, attrs.phases, jnp)
        w = u[attrs.points :].transpose(0, 2, 1, 3).reshape(*attrs.window, x.shape[3], -1)
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
