"""Sorting along an axis: `sort` by one or more keys, and `top_k`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.gather import GATHER, GatherAttrs

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# A worker holds 24 bytes for each element that is sorted together.
_MOST_ELEMENTS = 1 << 20
_MOST_KEYS = 4

# What an element costs in additions' worth: by digits, and by comparisons for each level of halves.
_FLOPS_BY_DIGITS = 80
_FLOPS_OF_LEVEL = 20


@dataclasses.dataclass(frozen=True)
class SortAttrs(Attrs):
    """Attributes of sort.

    Attributes:
        axis: along which.
        count: how many elements it gives; the first in order.
        gives_order: whether it gives their places as int32; else the elements of the first key.
        descending: whether the largest come first; those that are equal keep their order.
        total: whether all bits of floats count, as `top_k` compares; else zeros are equal, and NaNs equal and last.
    """

    axis: int
    count: int
    gives_order: bool
    descending: bool = False
    total: bool = False


class Sort(OpFamily):
    """sort(keys of one shape, the first one first): stable. Keys of up to 32 bits."""

    name = "sort"
    kernel = "sort"
    attrs_type = SortAttrs

    def infer(self, attrs: SortAttrs, inputs: Sequence[Typed]) -> Typed:
        (shape, dtype), *others = inputs
        if any(other != shape for other, _ in others) or not 0 <= attrs.axis < len(shape) or attrs.count > shape[attrs.axis]:
            raise ValueError(f"sort of {[shape for shape, _ in inputs]} with {attrs}")
        out = (*shape[: attrs.axis], attrs.count, *shape[attrs.axis + 1 :])
        return out, np.dtype(np.int32) if attrs.gives_order else dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = boxes.copy()
        region[:, op.attrs.axis] = (0, op.inputs[index].shape[op.attrs.axis])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        # Each tile sorts all along the axis.
        grain = [1] * len(op.output.shape)
        grain[op.attrs.axis] = op.output.shape[op.attrs.axis]
        return tuple(grain)

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        order = permutations[0]
        if any(other != order for other in permutations):
            return None
        return dataclasses.replace(op.attrs, axis=order[op.attrs.axis]), order

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        extent = op.inputs[0].shape[op.attrs.axis]
        each = min(_FLOPS_BY_DIGITS, _FLOPS_OF_LEVEL * math.log2(max(2, extent)))
        read = sum(box_sizes(self.main_region(op, index, boxes)) for index in range(len(op.inputs)))
        return Work(own.flops + read * each, own.bytes + read * (16 + op.inputs[0].dtype.itemsize))

    def reference(self, attrs: SortAttrs, *inputs: jax.Array) -> jax.Array:
        if attrs.descending:
            assert attrs.total
            values, order = lax.top_k(jnp.moveaxis(inputs[0], attrs.axis, -1), attrs.count)
            return jnp.moveaxis(order if attrs.gives_order else values, -1, attrs.axis)
        places = lax.broadcasted_iota(np.int32, inputs[0].shape, attrs.axis)
        *keys, order = lax.sort([*inputs, places], dimension=attrs.axis, is_stable=True, num_keys=len(inputs))
        return lax.slice_in_dim(order if attrs.gives_order else keys[0], 0, attrs.count, axis=attrs.axis)


SORT = Sort()


@converts("sort")
def _convert_sort(build: Builder, equation: Equation, *operands: Operand) -> Sequence[Operand]:
    axis, num_keys = equation.params["dimension"], equation.params["num_keys"]
    keys = operands[:num_keys]
    _check(equation, keys, axis)
    if num_keys > _MOST_KEYS:
        raise Unsupported(f"sort by {num_keys} keys; tiles take up to {_MOST_KEYS}")
    extent = keys[0].shape[axis]
    if len(operands) == 1:
        return [build.op(SORT, SortAttrs(axis, extent, gives_order=False), list(keys))]
    order = build.op(SORT, SortAttrs(axis, extent, gives_order=True), list(keys))
    return [
        order if _is_iota(known, axis) else _taken(build, operand, order, axis)
        for operand, known in zip(operands, equation.arrays, strict=True)
    ]


@converts("top_k")
def _convert_top_k(build: Builder, equation: Equation, x: Operand) -> Sequence[Operand]:
    axis = equation.params.get("axis", len(x.shape) - 1) % len(x.shape)
    _check(equation, (x,), axis)
    attrs = SortAttrs(axis, equation.params["k"], gives_order=True, descending=True, total=True)
    if equation.outputs[1][1] != np.int32:
        raise Unsupported(f"top_k with places as {equation.outputs[1][1]}; tiles give int32")
    order = build.op(SORT, attrs, [x])
    return [_taken(build, x, order, axis), order]


def _why_not(key: Operand, axis: int) -> str | None:
    """Why tiles cannot sort by a key; None where they can."""
    if key.shape[axis] > _MOST_ELEMENTS:
        return f"of {key.shape[axis]} elements along an axis; tiles sort up to {_MOST_ELEMENTS}"
    if key.dtype.itemsize > 4:
        return f"by {key.dtype}; tiles sort by keys of up to 32 bits"
    return None


def _check(equation: Equation, keys: Sequence[Operand], axis: int) -> None:
    why = next((why for key in keys if (why := _why_not(key, axis)) is not None), None)
    if why is not None:
        raise Unsupported(f"{equation.primitive} {why}")


def _is_iota(known: np.ndarray | None, axis: int) -> bool:
    """Whether an operand counts along the axis from 0, so that in order it is the order itself."""
    if known is None or known.dtype != np.int32:
        return False
    along = np.arange(known.shape[axis], dtype=np.int32).reshape([-1 if d == axis else 1 for d in range(known.ndim)])
    return bool((known == along).all())


def _taken(build: Builder, x: Operand, order: Operand, axis: int) -> Operand:
    """Elements of x along the axis in an order."""
    if x.shape[axis] == 0:
        return x
    rank = len(x.shape)
    walks = tuple(-1 if d == axis else d for d in range(rank))
    components = tuple(0 if d == axis else -1 for d in range(rank))
    sizes = tuple(1 if d == axis else extent for d, extent in enumerate(x.shape))
    return build.op(GATHER, GatherAttrs(walks, components, sizes, tuple(range(rank))), [x, order])
