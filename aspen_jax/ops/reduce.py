"""Reductions of whole axes: sum, max, min, product, and, or, xor."""

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
from aspen_jax.ops.block_program import BlockBuilder, BlockProgram, single
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.opcodes import FLOATS, INTS, narrowing

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ReduceAttrs(Attrs):
    """Attributes of reduce: the kind (see windows.py) and the axes, ascending."""

    kind: int
    axes: tuple[int, ...]


class Reduce(OpFamily):
    """Reduces axes away. Floats, int32 (bitwise too) or bool (max is or, min is and)."""

    name = "reduce"
    kernel = "reduce"
    kernel_inputs = 1
    takes_epilogue = True
    attrs_type = ReduceAttrs

    def infer(self, attrs: ReduceAttrs, inputs: Sequence[Typed]) -> Typed:
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
    "reduce_and": windows.AND,
    "reduce_or": windows.OR,
    "reduce_xor": windows.XOR,
}
_OF_BOOLS = {windows.AND: windows.MIN, windows.OR: windows.MAX, windows.MIN: windows.MIN, windows.MAX: windows.MAX}


@converts(*_KINDS)
def _convert_reduce(build: Builder, equation: Equation, x: Operand) -> Operand:
    need_dtypes(equation, (x,), *FLOATS, *INTS, "bool")
    if equation.params.get("out_sharding") is not None:
        raise Unsupported(f"{equation.primitive} with out_sharding")
    axes = tuple(sorted(axis % max(len(x.shape), 1) for axis in equation.params["axes"]))
    kind, dtype = _KINDS[equation.primitive], x.dtype
    direct = _OF_BOOLS.get(kind) if dtype == np.bool_ else kind if dtype.name in (*FLOATS, "int32") else None
    if direct is not None:
        return build.op(REDUCE, ReduceAttrs(direct, axes), [x])
    lanes = build.block(_to_int32(kind, dtype), [x], x.shape, np.int32)
    total = build.op(REDUCE, ReduceAttrs(kind, axes), [lanes])
    return build.block(_from_int32(kind, dtype), [total], total.shape, dtype)


def _to_int32(kind: int, dtype: np.dtype) -> BlockProgram:
    """Brings integers of other widths, or bools, to what reduces as they do."""
    if dtype == np.bool_:
        return single("i_from_b")
    return _ORDER_OF_UNSIGNED if dtype == np.uint32 and kind in (windows.MAX, windows.MIN) else single("copy")


def _from_int32(kind: int, dtype: np.dtype) -> BlockProgram:
    """Brings the reduction back; what had no elements is the identity of int32, which those of fewer bits do not hold."""
    if dtype == np.bool_:
        return single("b_from_i")
    if kind not in (windows.MAX, windows.MIN):
        return single(narrowing(dtype) or "copy")
    if dtype == np.uint32:
        return _ORDER_OF_UNSIGNED
    block = BlockBuilder(1)
    opcode = "max_i" if kind == windows.MAX else "min_i"
    return block.build(block.emit(opcode, block.input(0), block.constant(windows.identity(kind, dtype))))


def _with_sign_changed() -> BlockProgram:
    block = BlockBuilder(1)
    return block.build(block.emit("xor_i", block.input(0), block.constant(np.int32(np.iinfo(np.int32).min))))


_ORDER_OF_UNSIGNED = _with_sign_changed()  # int32 are ordered as uint32 with the highest bit changed
