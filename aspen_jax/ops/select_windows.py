"""The derivatives of pooling by a maximum or a minimum: windows choose elements, which get or give those of a second tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops import windows
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import OpFamily, Typed, Work, unpermuted

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# The kernel lists a window's elements.
_MOST_ELEMENTS = 4096

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SelectWindowsAttrs(Attrs):
    """Attributes of both ops: kind (maximum or minimum, see windows.py); the rest has an entry a dimension."""

    kind: int
    window: Shape
    strides: Shape
    padding_lo: Shape
    padding_hi: Shape

    def windows(self, shape: Shape) -> Shape:
        """How many windows there are along each dimension of a tensor of this shape."""
        if not len(self.window) == len(shape) or min((*self.window, *self.strides), default=1) < 1:
            raise ValueError(f"windows on {shape} with {self}")
        padded = (extent + lo + hi for extent, lo, hi in zip(shape, self.padding_lo, self.padding_hi, strict=True))
        return tuple(
            max(0, (extent - size) // step + 1) for extent, size, step in zip(padded, self.window, self.strides, strict=True)
        )

    def elements(self, boxes: np.ndarray, shape: Shape) -> np.ndarray:
        """The elements of a tensor of this shape that boxes of windows hold."""
        region = np.empty_like(boxes)
        for axis, extent in enumerate(shape):
            region[:, axis, 0] = boxes[:, axis, 0] * self.strides[axis] - self.padding_lo[axis]
            region[:, axis, 1] = (boxes[:, axis, 1] - 1) * self.strides[axis] - self.padding_lo[axis] + self.window[axis]
            region[:, axis] = np.clip(region[:, axis], 0, extent)
        return region

    def permuted(self, order: Shape) -> SelectWindowsAttrs:
        fields = (self.window, self.strides, self.padding_lo, self.padding_hi)
        return SelectWindowsAttrs(self.kind, *(unpermuted(field, order) for field in fields))


class _SelectWindows(OpFamily):
    """f(other, x): a window chooses the first extreme element of x, or what follows a NaN; float32."""

    attrs_type = SelectWindowsAttrs
    kernel_inputs = 2

    def attrs_of_part(self, op: Op, part: Op) -> SelectWindowsAttrs | None:
        attrs: SelectWindowsAttrs = op.attrs
        whole, own = ((attrs.windows(item.inputs[1].shape), item.inputs[1].shape) for item in (op, part))
        return attrs if windows.lie_alike(whole, own, attrs.strides, [1] * len(attrs.strides)) else None

    def permuted(self, op: Op, permutations: Sequence[Shape]) -> tuple[Any, Shape] | None:
        first, second = permutations
        return (op.attrs.permuted(first), first) if first == second else None


class SelectAndScatterAdd(_SelectWindows):
    """Adds each window's element of `source` to the place of the element that the window chooses."""

    name = "select_and_scatter_add"
    kernel = "select_and_scatter_add"

    def infer(self, attrs: SelectWindowsAttrs, inputs: Sequence[Typed]) -> Typed:
        (source, _), (shape, dtype) = inputs
        if attrs.windows(shape) != source:
            raise ValueError(f"{self.name} of {source} on {shape} with {attrs}")
        return shape, dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: SelectWindowsAttrs = op.attrs
        source, shape = (operand.shape for operand in op.main_inputs)
        reaching = np.empty_like(boxes)
        for axis in range(len(shape)):
            low, step = attrs.padding_lo[axis], attrs.strides[axis]
            first = boxes[:, axis, 0] + low - attrs.window[axis] + 1
            reaching[:, axis, 0] = np.clip(-(-first // step), 0, source[axis])
            reaching[:, axis, 1] = np.clip((boxes[:, axis, 1] - 1 + low) // step + 1, 0, source[axis])
        if index == 0:
            return reaching
        region = attrs.elements(reaching, shape)
        region[(reaching[:, :, 1] <= reaching[:, :, 0]).any(axis=1)] = 0
        return region

    def grain(self, op: Op) -> Shape:
        # A window on the border of two tiles is walked by both.
        grain = list(super().grain(op))
        for axis, size in enumerate(op.attrs.window):
            if size > 1:
                grain[axis] = max(grain[axis], min(op.output.shape[axis], 4 * size))
        return tuple(grain)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        walked = box_sizes(self.main_region(op, 0, boxes))
        read = box_sizes(self.main_region(op, 1, boxes)) + walked
        return Work(own.flops + 4 * walked * math.prod(op.attrs.window), own.bytes + 4 * read)

    def reference(self, attrs: SelectWindowsAttrs, *inputs: jax.Array) -> jax.Array:
        return _bound(self.name, attrs, inputs)


class SelectAndGatherAdd(_SelectWindows):
    """Gathering by windows: each chooses a place in x and takes the other tensor's element there; 0 where it is padding."""

    name = "select_and_gather_add"
    kernel = "select_and_gather_add"

    def infer(self, attrs: SelectWindowsAttrs, inputs: Sequence[Typed]) -> Typed:
        (other, dtype), (shape, _) = inputs
        if other != shape:
            raise ValueError(f"{self.name} from {other} by {shape}")
        return attrs.windows(shape), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        return op.attrs.elements(boxes, op.inputs[index].shape)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        read = 2 * box_sizes(self.main_region(op, 0, boxes))
        return Work(own.flops + 4 * box_sizes(boxes) * math.prod(op.attrs.window), own.bytes + 4 * read)

    def reference(self, attrs: SelectWindowsAttrs, *inputs: jax.Array) -> jax.Array:
        ones = (1,) * len(attrs.window)
        return _bound(self.name, attrs, inputs, base_dilation=ones, window_dilation=ones)


SELECT_AND_SCATTER_ADD = SelectAndScatterAdd()
SELECT_AND_GATHER_ADD = SelectAndGatherAdd()
_PRIMITIVES = {SELECT_AND_SCATTER_ADD.name: lax.select_and_scatter_add_p, SELECT_AND_GATHER_ADD.name: lax.select_and_gather_add_p}


def _bound(name: str, attrs: SelectWindowsAttrs, inputs: Sequence[jax.Array], **others: Any) -> jax.Array:
    return _PRIMITIVES[name].bind(
        *inputs,
        select_prim=lax.ge_p if attrs.kind == windows.MAX else lax.le_p,
        window_dimensions=attrs.window,
        window_strides=attrs.strides,
        padding=tuple(zip(attrs.padding_lo, attrs.padding_hi, strict=True)),
        **others,
    )


def _attrs(equation: Equation, operands: Sequence[Operand]) -> SelectWindowsAttrs:
    need_dtypes(equation, operands, "float32")
    params = equation.params
    for name in ("base_dilation", "window_dilation"):
        if any(extent != 1 for extent in params.get(name) or ()):
            raise Unsupported(f"{equation.primitive} with a {name.replace('_', ' ')}")
    lows, highs = zip(*params["padding"], strict=True) if params["padding"] else ((), ())
    if min((*lows, *highs), default=0) < 0:
        raise Unsupported(f"{equation.primitive} with negative padding")
    window = tuple(params["window_dimensions"])
    if not window or math.prod(window) > _MOST_ELEMENTS:
        raise Unsupported(f"{equation.primitive} of windows of {math.prod(window)} elements; tiles take up to {_MOST_ELEMENTS}")
    kind = windows.MAX if params["select_prim"] is lax.ge_p else windows.MIN
    return SelectWindowsAttrs(kind, window, tuple(params["window_strides"]), lows, highs)


@converts("select_and_scatter_add")
def _convert_scatter(build: Builder, equation: Equation, source: Operand, x: Operand) -> Operand:
    return build.op(SELECT_AND_SCATTER_ADD, _attrs(equation, (source, x)), [source, x])


@converts("select_and_gather_add")
def _convert_gather(build: Builder, equation: Equation, other: Operand, x: Operand) -> Operand:
    return build.op(SELECT_AND_GATHER_ADD, _attrs(equation, (other, x)), [other, x])
