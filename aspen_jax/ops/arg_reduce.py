"""Where along an axis the largest or the least element is: argmax and argmin."""

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
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts
from aspen_jax.ops.family import OpFamily, Typed, Work

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ArgReduceAttrs(Attrs):
    """Attributes of arg_reduce: the kind (maximum or minimum, see windows.py) and the axis."""

    kind: int
    axis: int


class ArgReduce(OpFamily):
    """The first index of the extreme along an axis as int32, of any dtype; a NaN is beyond all numbers."""

    name = "arg_reduce"
    kernel = "arg_reduce"
    kernel_inputs = 1
    attrs_type = ArgReduceAttrs

    def infer(self, attrs: ArgReduceAttrs, inputs: Sequence[Typed]) -> Typed:
        ((shape, _),) = inputs
        return (*shape[: attrs.axis], *shape[attrs.axis + 1 :]), np.dtype(np.int32)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        return np.insert(boxes, op.attrs.axis, (0, op.inputs[0].shape[op.attrs.axis]), axis=1)

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        (order,) = permutations
        kept = [source for axis, source in enumerate(order) if axis != op.attrs.axis]
        attrs = dataclasses.replace(op.attrs, axis=order[op.attrs.axis])
        return attrs, tuple(sorted(kept).index(source) for source in kept)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        read = box_sizes(self.main_region(op, 0, boxes))
        return Work(own.flops + 4 * read, own.bytes + read * op.inputs[0].dtype.itemsize)

    def reference(self, attrs: ArgReduceAttrs, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return (lax.argmax if attrs.kind == windows.MAX else lax.argmin)(x, attrs.axis, np.int32)


ARG_REDUCE = ArgReduce()


@converts("argmax", "argmin")
def _convert_arg_reduce(build: Builder, equation: Equation, x: Operand) -> Operand:
    (axis,) = equation.params["axes"]
    if equation.dtype != np.int32:
        raise Unsupported(f"{equation.primitive} as {equation.dtype}; tiles give int32")
    kind = windows.MAX if equation.primitive == "argmax" else windows.MIN
    return build.op(ARG_REDUCE, ArgReduceAttrs(kind, axis), [x])
