"""Row programs over some axes: softmax, normalisations, logsumexp and the like, as one op. The pass `rows` makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import jax
import numpy as np

from aspen_jax.ops.attrs import Attrs, Words
from aspen_jax.ops.block import box_sizes, program_flops
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.row_program import NUMBER, ROW, RowProgram

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# What streaming a vector through an instruction of the block interpreter costs beside an addition in registers.
_FLOPS_OF_STREAMING = 3


@dataclasses.dataclass(frozen=True)
class RowsAttrs(Attrs):
    """Attributes of rows: the axes that make up a row, ascending, and what is computed along them."""

    axes: tuple[int, ...]
    rows: RowProgram

    def to_words(self) -> list[int]:
        return [len(self.axes), *self.axes, *self.rows.to_words()]

    @classmethod
    def from_words(cls, words: Words) -> Self:
        return cls(words.list(), RowProgram.from_words(words))


class Rows(OpFamily):
    """A row program over inputs of one shape. The outputs have that shape, or lack the axes of the rows."""

    name = "rows"
    kernel = "rows"
    attrs_type = RowsAttrs
    may_have_further = True

    def infer(self, attrs: RowsAttrs, inputs: Sequence[Typed]) -> Typed:
        shapes = {shape for shape, _ in inputs}
        (shape,) = shapes if len(shapes) == 1 else (None,)
        if shape is None or attrs.rows.num_inputs != len(inputs) or not all(0 <= axis < len(shape) for axis in attrs.axes):
            raise ValueError(f"rows along {attrs.axes} of {[shape for shape, _ in inputs]}")
        if attrs.rows.gives_rows:
            return shape, attrs.rows.dtype
        return tuple(extent for axis, extent in enumerate(shape) if axis not in attrs.axes), attrs.rows.dtype

    def check(self, op: Op) -> None:
        super().check(op)
        if tuple(value.dtype for value in op.outputs) != op.attrs.rows.dtypes:
            raise ValueError(f"its row program gives {', '.join(map(str, op.attrs.rows.dtypes))}")

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        shape, axes = op.inputs[index].shape, op.attrs.axes
        region = np.empty((len(boxes), len(shape), 2), np.int64)
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        region[:, kept] = boxes[:, kept] if op.attrs.rows.gives_rows else boxes
        for axis in axes:
            region[:, axis] = (0, shape[axis])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        # A tile has whole rows.
        grain = super().grain(op)
        if not op.attrs.rows.gives_rows:
            return grain
        return tuple(op.output.shape[axis] if axis in op.attrs.axes else step for axis, step in enumerate(grain))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        read = box_sizes(self.main_region(op, 0, boxes))
        flops = 0
        for kind, _, program in op.attrs.rows.stages:
            if kind != NUMBER:
                flops += program_flops(program) + _FLOPS_OF_STREAMING * (len(program.instructions) + (kind < ROW))
        item_bytes = sum(item.dtype.itemsize for item in op.inputs if item.value.size * 2 >= op.inputs[0].view.value_size)
        return Work(read * flops, read * item_bytes + box_sizes(boxes) * sum(value.dtype.itemsize for value in op.outputs))

    def reference(self, attrs: RowsAttrs, *inputs: jax.Array) -> jax.Array:
        return attrs.rows.reference(inputs, attrs.axes, inputs[0].shape)

    def references(self, attrs: RowsAttrs, *inputs: jax.Array) -> list[jax.Array]:
        return attrs.rows.references(inputs, attrs.axes, inputs[0].shape)


ROWS = Rows()
