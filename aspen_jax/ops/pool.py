"""Pooling: `reduce_window` with a sum, a maximum, a minimum or a product, over any dimensions."""

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
from aspen_jax.ops.converters import Builder, Equation, converts, need_dtypes
from aspen_jax.ops.family import OpFamily, Typed, Work, unpermuted
from aspen_jax.ops.opcodes import FLOATS

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


# What a gap between the elements that a tile reads costs: channels of a pixel that are read apart from their neighbours take
# cache lines that no prefetcher foresees. 64 bytes of every 256 were measured to take 2.7 times as long as all of them.
_GAP_BYTES = 128


@dataclasses.dataclass(frozen=True)
class PoolAttrs(Attrs):
    """Attributes of pool; all but `kind` (see windows.py) have an entry a dimension. Padding may be negative."""

    kind: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding_lo: tuple[int, ...]
    padding_hi: tuple[int, ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]


class Pool(OpFamily):
    """Reduces a window around every output element; padding is the identity of the reduction. Floats or int32."""

    name = "pool"
    kernel = "pool"
    kernel_inputs = 1
    takes_epilogue = True
    attrs_type = PoolAttrs

    def infer(self, attrs: PoolAttrs, inputs: Sequence[Typed]) -> Typed:
        (shape, dtype), *_ = inputs
        positive = (*attrs.window, *attrs.strides, *attrs.base_dilation, *attrs.window_dilation)
        if len(attrs.window) != len(shape) or min(positive, default=1) < 1:
            raise ValueError(f"pool of {shape} with {attrs}")
        out = []
        for axis, extent in enumerate(shape):
            dilated = (extent - 1) * attrs.base_dilation[axis] + 1 if extent else 0
            padded = dilated + attrs.padding_lo[axis] + attrs.padding_hi[axis]
            span = (attrs.window[axis] - 1) * attrs.window_dilation[axis] + 1
            out.append(max(0, (padded - span) // attrs.strides[axis] + 1))
        return tuple(out), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: PoolAttrs = op.attrs
        region = np.empty_like(boxes)
        for axis, extent in enumerate(op.inputs[0].shape):
            low, base = attrs.padding_lo[axis], attrs.base_dilation[axis]
            first = boxes[:, axis, 0] * attrs.strides[axis] - low
            last = (boxes[:, axis, 1] - 1) * attrs.strides[axis] - low + (attrs.window[axis] - 1) * attrs.window_dilation[axis]
            region[:, axis, 0] = np.clip(-(-first // base), 0, extent)
            region[:, axis, 1] = np.clip(last // base + 1, 0, extent)
        return region

    def attrs_of_part(self, op: Op, part: Op) -> PoolAttrs | None:
        attrs: PoolAttrs = op.attrs
        whole, own = ((item.output.shape, item.inputs[0].shape) for item in (op, part))
        return attrs if windows.lie_alike(whole, own, attrs.strides, attrs.base_dilation) else None

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.shape[-1:] == (1,) or operand.view.strides()[-1:] in ((1,), ())

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        (order,) = permutations
        attrs: PoolAttrs = op.attrs
        fields = (attrs.window, attrs.strides, attrs.padding_lo, attrs.padding_hi, attrs.base_dilation, attrs.window_dilation)
        return PoolAttrs(attrs.kind, *(unpermuted(field, order) for field in fields)), order

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        region = self.main_region(op, 0, boxes)
        read = box_sizes(region) * op.inputs[0].dtype.itemsize
        if op.inputs[0].shape:
            columns = np.maximum(region[:, -1, 1] - region[:, -1, 0], 1)
            apart = columns < op.inputs[0].shape[-1]
            read = read * np.where(apart, 1 + _GAP_BYTES / (columns * op.inputs[0].dtype.itemsize), 1)
        return Work(own.flops + box_sizes(boxes) * math.prod(op.attrs.window), own.bytes + read)

    def reference(self, attrs: PoolAttrs, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return lax.reduce_window(
            x,
            windows.identity(attrs.kind, np.dtype(x.dtype)),
            windows.COMBINE[attrs.kind],
            attrs.window,
            attrs.strides,
            tuple(zip(attrs.padding_lo, attrs.padding_hi, strict=True)),
            attrs.base_dilation,
            attrs.window_dilation,
        )


POOL = Pool()

_KINDS = {"reduce_window_sum": windows.SUM, "reduce_window_max": windows.MAX, "reduce_window_min": windows.MIN}


@converts(*_KINDS)
def _convert_pool(build: Builder, equation: Equation, x: Operand) -> Operand:
    need_dtypes(equation, (x,), *FLOATS, "int32")
    if not x.shape:
        return x  # the window around a scalar holds the scalar
    params = equation.params
    ones = (1,) * len(x.shape)
    attrs = PoolAttrs(
        _KINDS[equation.primitive],
        tuple(params["window_dimensions"]),
        tuple(params["window_strides"]),
        tuple(low for low, _ in params["padding"]),
        tuple(high for _, high in params["padding"]),
        tuple(params.get("base_dilation") or ones),
        tuple(params.get("window_dilation") or ones),
    )
    return build.op(POOL, attrs, [x])
