"""Padding: at the edges, inside, or negative (cropping)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops import windows
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, converts
from aspen_jax.ops.family import OpFamily, Typed, Work, unpermuted

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class PadAttrs(Attrs):
    """Attributes of pad, an entry a dimension: elements added below (may be negative), above (likewise) and between."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]
    interior: tuple[int, ...]


class Pad(OpFamily):
    """pad(x, value of rank 0), of any dtype."""

    name = "pad"
    kernel = "pad"
    kernel_inputs = 2
    attrs_type = PadAttrs

    def infer(self, attrs: PadAttrs, inputs: Sequence[Typed]) -> Typed:
        (shape, dtype), _ = inputs
        if not len(attrs.lo) == len(attrs.hi) == len(attrs.interior) == len(shape) or min(attrs.interior, default=0) < 0:
            raise ValueError(f"pad of {shape} with {attrs}")
        out = []
        for axis, extent in enumerate(shape):
            inner = max(extent - 1, 0) * attrs.interior[axis]
            out.append(max(0, attrs.lo[axis] + extent + inner + attrs.hi[axis]))
        return tuple(out), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        if index == 1:
            return np.empty((len(boxes), 0, 2), np.int64)
        region = np.empty_like(boxes)
        for axis, extent in enumerate(op.inputs[0].shape):
            step, low = op.attrs.interior[axis] + 1, op.attrs.lo[axis]
            region[:, axis, 0] = np.clip(-(-(boxes[:, axis, 0] - low) // step), 0, extent)
            region[:, axis, 1] = np.clip((boxes[:, axis, 1] - 1 - low) // step + 1, 0, extent)
        return region

    def attrs_of_part(self, op: Op, part: Op) -> PadAttrs | None:
        whole, own = ((item.output.shape, item.inputs[0].shape) for item in (op, part))
        steps = [between + 1 for between in op.attrs.interior]
        return op.attrs if windows.lie_alike(whole, own, [1] * len(steps), steps) else None

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        order = permutations[0]
        attrs = PadAttrs(*(unpermuted(field, order) for field in (op.attrs.lo, op.attrs.hi, op.attrs.interior)))
        return attrs, order

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        return Work(own.flops, own.bytes + box_sizes(self.main_region(op, 0, boxes)) * op.inputs[0].dtype.itemsize)

    def reference(self, attrs: PadAttrs, *inputs: jax.Array) -> jax.Array:
        x, value = inputs
        return lax.pad(x, value, tuple(zip(attrs.lo, attrs.hi, attrs.interior, strict=True)))


PAD = Pad()


@converts("pad")
def _convert_pad(build: Builder, equation: Equation, x: Operand, value: Operand) -> Operand:
    low, high, interior = zip(*equation.params["padding_config"], strict=True) if x.shape else ((), (), ())
    return build.op(PAD, PadAttrs(tuple(low), tuple(high), tuple(interior)), [x, value])
