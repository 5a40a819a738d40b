"""Reductions of whole axes: sum, max, min, product, and, or."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ops import windows
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import OpFamily, Work
from aspen_jax.ops.opcodes import FLOATS
from aspen_jax.program import Operand

if TYPE_CHECKING:
    from aspen_jax.program import Op


@dataclasses.dataclass(frozen=True)
class ReduceAttrs(Attrs):
    """Attributes of reduce: the kind (see windows.py) and the axes, ascending."""

    kind: int
    axes: tuple[int, ...]


class Reduce(OpFamily):
    """Reduces axes away. Floats, int32 or bool (max is or, min is and)."""

    name = "reduce"
    kernel = "reduce"
    takes_epilogue = True
    attrs_type = ReduceAttrs

    def num_main(self, op: Op) -> int:
        return 1

    def infer(self, attrs: ReduceAttrs, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        (shape, dtype), *_ = inputs
        return tuple(extent for axis, extent in enumerate(shape) if axis not in attrs.axes), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        shape = op.inputs[0].shape
        region = np.empty((len(boxes), len(shape), 2), np.int64)
        kept = [axis for axis in range(len(shape)) if axis not in op.attrs.axes]
        region[:, kept] = boxes
        for axis in op.attrs.axes:
            region[:, axis] = (0, shape[axis])
        return region

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        (order,) = permutations
        axes = tuple(sorted(order[axis] for axis in op.attrs.axes))
        kept = [source for axis, source in enumerate(order) if axis not in op.attrs.axes]
        return ReduceAttrs(op.attrs.kind, axes), tuple(sorted(kept).index(source) for source in kept)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        read = box_sizes(self.main_region(op, 0, boxes))
        return Work(own.flops + read, own.bytes + read * op.inputs[0].dtype.itemsize)

    def reference(self, attrs: ReduceAttrs, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        start = windows.identity(attrs.kind, np.dtype(x.dtype))
        combine = windows.COMBINE[attrs.kind]
        if x.dtype == np.bool_:
            combine = lax.bitwise_or if attrs.kind == windows.MAX else lax.bitwise_and
        return lax.reduce(x, start, combine, attrs.axes)


REDUCE = Reduce()

_KINDS = {
    "reduce_sum": windows.SUM,
    "reduce_max": windows.MAX,
    "reduce_min": windows.MIN,
    "reduce_prod": windows.PRODUCT,
    "reduce_or": windows.MAX,
    "reduce_and": windows.MIN,
}


@converts(*_KINDS)
def _convert_reduce(build: Builder, equation: Equation, x: Operand) -> Operand:
    logical = equation.primitive in ("reduce_or", "reduce_and")
    need_dtypes(equation, (x,), *(("bool",) if logical else (*FLOATS, "int32")))
    if equation.params.get("out_sharding") is not None:
        raise Unsupported(f"{equation.primitive} with out_sharding")
    axes = tuple(sorted(axis % max(len(x.shape), 1) for axis in equation.params["axes"]))
    return build.op(REDUCE, ReduceAttrs(_KINDS[equation.primitive], axes), [x])
