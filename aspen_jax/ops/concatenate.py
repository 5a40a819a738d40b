"""Concatenation along one axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, converts
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.layout import reshaped

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ConcatenateAttrs(Attrs):
    """Attributes of concatenate: the axis."""

    axis: int


class Concatenate(OpFamily):
    """Any number of inputs one after the other, of any dtype."""

    name = "concatenate"
    kernel = "concatenate"
    attrs_type = ConcatenateAttrs

    def num_main(self, op: Op) -> int:
        return len(op.inputs) if op.program is None else len(op.inputs) + 1 - op.program.num_inputs

    def may_end_in_block(self, op: Op) -> bool:
        # Of an empty output the kernel could not tell which inputs are the epilogue's.
        return op.output.size > 0 and all(item.shape[-1] == 1 or item.view.strides()[-1] == 1 for item in op.main_inputs)

    def infer(self, attrs: ConcatenateAttrs, inputs: Sequence[Typed]) -> Typed:
        shape, dtype = list(inputs[0][0]), inputs[0][1]
        shape[attrs.axis] = sum(piece[attrs.axis] for piece, _ in inputs)
        return tuple(shape), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        axis = op.attrs.axis
        start = sum(piece.shape[axis] for piece in op.main_inputs[:index])
        region = boxes.copy()
        region[:, axis] = np.clip(region[:, axis] - start, 0, op.inputs[index].shape[axis])
        return region

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        if len(set(permutations)) > 1:
            return None
        return ConcatenateAttrs(permutations[0][op.attrs.axis]), permutations[0]

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        return Work(own.flops, own.bytes + box_sizes(boxes) * op.output.dtype.itemsize)

    def reference(self, attrs: ConcatenateAttrs, *inputs: jax.Array) -> jax.Array:
        return lax.concatenate(inputs, attrs.axis)


CONCATENATE = Concatenate()


@converts("stack")
def _convert_stack(build: Builder, equation: Equation, *pieces: Operand) -> Operand:
    axis = equation.params["axis"]
    expanded = [reshaped(build, piece, (*piece.shape[:axis], 1, *piece.shape[axis:])) for piece in pieces]
    return expanded[0] if len(expanded) == 1 else build.op(CONCATENATE, ConcatenateAttrs(axis), expanded)


@converts("concatenate")
def _convert_concatenate(build: Builder, equation: Equation, *pieces: Operand) -> Operand:
    axis = equation.params["dimension"]
    kept = [piece for piece in pieces if piece.shape[axis]] or list(pieces[:1])
    return kept[0] if len(kept) == 1 else build.op(CONCATENATE, ConcatenateAttrs(axis), kept)
