"""An op that also writes partial reductions of its result (Bolt, section 3.1.1). A pass makes it.

The further output has one element for each unit of the result: so many indices of each reduced axis. A `reduce` of that over the
same axes gives the whole reduction, in an order that no scheduling changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from aspen_jax.ops.attrs import Attrs, Words
from aspen_jax.ops.block import box_sizes
from aspen_jax.ops.family import FAMILIES, OpFamily, Typed, Work
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op, Operand, Value
    from aspen_jax.ops.block_program import BlockProgram


@dataclasses.dataclass(frozen=True)
class PartialReduceAttrs(Attrs):
    """Attributes of partial_reduce.

    Attributes:
        kernel: of the op.
        kind: of the reduction (windows.py).
        axes: that are reduced, ascending.
        unit: indices of the result behind one partial result, for each axis; 1 for those that are not reduced.
        part: the op's own attributes.
    """

    kernel: str
    kind: int
    axes: tuple[int, ...]
    unit: tuple[int, ...]
    part: Any

    def to_words(self) -> list[int]:
        letters = self.kernel.encode("ascii")
        lists = [self.kind, len(self.axes), *self.axes, len(self.unit), *self.unit]
        return [len(letters), *letters, *lists, *self.part.to_words()]

    @classmethod
    def from_words(cls, words: Words) -> PartialReduceAttrs:
        kernel, kind, axes, unit = words.name(), words.integer(), words.list(), words.list()
        attrs_type = _family(kernel).attrs_type
        if attrs_type is None:
            raise ValueError(f"the result of {kernel!r} is not reduced in parts")
        return cls(kernel, kind, axes, unit, attrs_type.from_words(words))


class PartialReduce(OpFamily):
    """An op with its epilogue, and partial reductions of what it writes."""

    name = "partial_reduce"
    kernel = "partial_reduce"
    may_have_further = True
    attrs_type = PartialReduceAttrs

    def num_main(self, op: Op) -> int:
        part = part_of(op)
        return part.family.num_main(part)

    def infer(self, attrs: PartialReduceAttrs, inputs: Sequence[Typed]) -> Typed:
        return _family(attrs.kernel).infer(attrs.part, inputs)

    def check(self, op: Op) -> None:
        attrs: PartialReduceAttrs = op.attrs
        part = part_of(op)
        part.family.check(part)
        shape, rank = op.output.shape, len(op.output.shape)
        if len(op.further) != 1 or len(attrs.unit) != rank or not attrs.axes or rank + len(attrs.axes) > MOST_AXES:
            raise ValueError(f"{len(op.further)} reductions of {list(shape)} along {attrs.axes} in units of {attrs.unit}")
        if list(attrs.axes) != sorted(set(attrs.axes) & set(range(rank))):
            raise ValueError(f"{attrs.axes} are not axes of {list(shape)}, ascending")
        if any(
            size < 1 or extent % size or (size > 1 and axis not in attrs.axes)
            for axis, (size, extent) in enumerate(zip(attrs.unit, shape, strict=True))
        ):
            raise ValueError(f"{list(shape)} is not reduced along {attrs.axes} in units of {attrs.unit}")
        (partial,) = op.further
        if partial.shape != units_of(shape, attrs.unit) or partial is op.output:
            raise ValueError(f"partial results of {list(shape)} in units of {attrs.unit} have another shape than {partial.shape}")

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        part = part_of(op)
        return part.family.main_region(part, index, boxes)

    def rewritten(self, op: Op) -> Operand | None:
        part = part_of(op)
        return part.family.rewritten(part)

    def grain(self, op: Op) -> tuple[int, ...]:
        part = part_of(op)
        return tuple(map(math.lcm, part.family.grain(part), op.attrs.unit))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        part, sizes = part_of(op), box_sizes(boxes)
        own = part.family.work(part, boxes)
        written = sizes / math.prod(op.attrs.unit) * op.further[0].dtype.itemsize
        return Work(own.flops + sizes, own.bytes + written, own.pieces)

    def parse(self, words: Sequence[int], num_outputs: int = 1) -> tuple[Any, BlockProgram | None]:
        return super().parse(words)  # the program is that of the result alone

    def reference(self, attrs: PartialReduceAttrs, *inputs: jax.Array) -> jax.Array:
        raise ValueError("a partial reduction's reference is that of its op; see ops/reference.py")


PARTIAL_REDUCE = PartialReduce()

MOST_AXES = 8
"""Axes of a result and reduced ones among them, together."""


def part_of(op: Op) -> Op:
    """The op whose result is reduced."""
    attrs: PartialReduceAttrs = op.attrs
    return op.replace(family=_family(attrs.kernel), attrs=attrs.part, further=())


def units_of(shape: Sequence[int], unit: Sequence[int]) -> tuple[int, ...]:
    """The shape of partial results."""
    return tuple(extent // size for extent, size in zip(shape, unit, strict=True))


def with_partial(op: Op, kind: int, axes: tuple[int, ...], unit: tuple[int, ...], partial: Value) -> Op:
    """The op with partial reductions of its result in `partial`."""
    attrs = PartialReduceAttrs(op.family.kernel, kind, axes, unit, op.attrs)
    return op.replace(family=PARTIAL_REDUCE, attrs=attrs, further=(partial,))


def partial_results(attrs: PartialReduceAttrs, result: jax.Array) -> jax.Array:
    """Partial results of a result, in jax.lax."""
    shape: list[int] = []
    for axis, (extent, size) in enumerate(zip(result.shape, attrs.unit, strict=True)):
        shape += [extent // size, size] if axis in attrs.axes else [extent]
    axes = tuple(axis + number + 1 for number, axis in enumerate(attrs.axes))
    return REDUCE.reference(ReduceAttrs(attrs.kind, axes), result.reshape(shape))


def _family(kernel: str) -> OpFamily:
    family = FAMILIES.get(kernel)
    if family is None or family is PARTIAL_REDUCE:
        raise ValueError(f"the result of {kernel!r} is not reduced in parts")
    return family
