"""Chooses Strassen's algorithm for 1x1 convolutions of images with known weights that it makes cheaper (ops/strassen.py).

It mixes the pixels of a line with their neighbours. Not for products: their rows are examples or tokens, whatever the rank, and
none may see its neighbour's rounding errors and NaNs. The weights' factors are made once, twice what the weights take.
Convolutions of the same pixels share their left factors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.strassen import (
    COLUMNS,
    STRASSEN,
    STRASSEN_ROWS,
    StrassenAttrs,
    StrassenRowsAttrs,
    padding_for,
    right_factors,
    right_shape,
)
from aspen_jax.passes import storage

# Missing columns of the last pair of panels are multiplied too: at most so many for each that is there.
_MOST_MISSING = 0.05


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Replace 1x1 convolutions with constant weights for which the cost model says so, or measurement."""
    constants = storage.Constants(program)
    lefts: dict[tuple[Operand, int], Op] = {}
    ops: list[Op] = []
    for op in program.ops:
        source = constants.source(op.inputs[1]) if op.family is CONV2D else None
        found = None if source is None else _rewritten(op)
        if source is None or found is None or not machine.are_cheaper([found.left, found.product], [op]):
            ops.append(op)
            continue
        key = found.left.inputs[0], found.left.attrs.padding
        if key not in lefts:
            lefts[key] = found.left
            ops.append(found.left)
        factors = constants.stored(source, lambda array: right_factors(array.reshape(-1, array.shape[-1])))
        inputs = (Operand.whole(lefts[key].output), factors, *op.extra_inputs)
        ops.append(found.product.replace(inputs=inputs))
    return program.replace(ops=tuple(ops), constants=constants.all())


class _Rewritten(NamedTuple):
    """A convolution as two ops."""

    left: Op
    product: Op


def _may_be(op: Op) -> bool:
    """Whether it is one of pixels, the user's precision allows it, and enough columns of the last pair of panels exist."""
    x, w = op.main_inputs
    attrs: ConvAttrs = op.attrs
    columns = op.output.shape[-1] if op.output.size > 0 else 0
    return (
        w.shape[:2] == (1, 1)
        and x.shape[1] > 1  # one line is what convolutions of sequences have: their positions may be tokens
        and not any(attrs.padding)
        and attrs.groups == 1
        and not op.exact
        and columns > 0
        and -columns % COLUMNS <= _MOST_MISSING * columns
        and all(item.dtype == np.float32 for item in (x, w, op.output))
    )


def _rewritten(op: Op) -> _Rewritten | None:
    """The convolution by Strassen's algorithm, a matrix for each line of pixels; None where they do not suit it."""
    if not _may_be(op):
        return None
    x, attrs = op.inputs[0], op.attrs
    rows = Operand(x.value, x.view.slice((0,) * 4, x.shape, (1, *attrs.strides, 1)))
    size, shape = rows.shape[-1], op.output.shape
    if size == 0 or size % 2 or rows.view.strides()[-1] != 1:
        return None
    build = Builder()
    build.name, build.source = f"{op.name}/rows", op.source
    left = build.op(STRASSEN_ROWS, StrassenRowsAttrs(padding_for(size)), [rows])
    right = Value(right_shape(size, shape[-1]), rows.dtype)
    build.op(STRASSEN, StrassenAttrs(*shape[-2:]), [left, Operand.whole(right)])
    left_op, product = build.ops
    product = product.replace(
        inputs=(*product.inputs, *op.extra_inputs), output=op.output, program=op.program, name=op.name, source=op.source
    )
    return _Rewritten(left_op, product)
