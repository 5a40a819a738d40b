"""Chooses Strassen's algorithm for the products and 1x1 convolutions with known weights that it makes cheaper (ops/strassen.py).

The weights' factors are made once, 7/4 of what the weights take. Products of the same rows share their left factors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspen_jax import storage
from aspen_jax.apu.machine import Machine
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.matmul import MATMUL
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
from aspen_jax.passes import matrices
from aspen_jax.program import Op, Operand, Program, Value

# Missing columns of the last pair of panels are multiplied too: at most so many for each that is there.
_MOST_MISSING = 0.05


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Replace products with constant weights for which the cost model says so, or measurement."""
    constants = storage.Constants(program)
    lefts: dict[tuple[Operand, int], Op] = {}
    ops: list[Op] = []
    for op in program.ops:
        rewrite = _REWRITTEN.get(op.family)
        source = None if rewrite is None else constants.source(op.inputs[1])
        found = None if rewrite is None or source is None else rewrite(op)
        if source is None or found is None or not machine.are_cheaper([found.left, found.product], [op]):
            ops.append(op)
            continue
        key = found.left.inputs[0], found.left.attrs.padding
        if key not in lefts:
            lefts[key] = found.left
            ops.append(found.left)
        weights = Operand(source.value, source.view.transpose(found.order))
        factors = constants.stored(weights, lambda array: right_factors(array.reshape(-1, array.shape[-1])))
        inputs = (Operand.whole(lefts[key].output), factors, *op.extra_inputs)
        ops.append(found.product.replace(inputs=inputs))
    return program.replace(ops=tuple(ops), constants=constants.all())


class _Rewritten(NamedTuple):
    """A product as two ops, and the order of the weights' dimensions in which they are the rows and columns of a matrix."""

    left: Op
    product: Op
    order: tuple[int, ...]


def _may_be(op: Op) -> bool:
    """Whether the user's precision allows it, and enough columns of the last pair of panels exist."""
    columns = op.output.shape[-1] if op.output.size > 0 else 0
    return (
        not op.exact
        and columns > 0
        and -columns % COLUMNS <= _MOST_MISSING * columns
        and all(item.dtype == np.float32 for item in (*op.main_inputs, op.output))
    )


def _product(op: Op) -> _Rewritten | None:
    """A product by Strassen's algorithm; None where it is none of matrices."""
    # Rows of a single matrix may be the examples of a batch, and none may see its neighbour's rounding errors and NaNs.
    if len(op.output.shape) < 3 or not _may_be(op):
        return None
    found = matrices.of_product(op)
    return None if found is None else _rewritten(op, found.rows, found.order)


def _pointwise(op: Op) -> _Rewritten | None:
    """A convolution of 1x1 by Strassen's algorithm: the pixels of each line of an image are the rows of a matrix."""
    x, w = op.main_inputs
    attrs: ConvAttrs = op.attrs
    if w.shape[:2] != (1, 1) or any(attrs.padding) or attrs.groups > 1 or not _may_be(op):
        return None
    starts, strides = (0,) * 4, (1, *attrs.strides, 1)
    return _rewritten(op, Operand(x.value, x.view.slice(starts, x.shape, strides)), (0, 1, 2, 3))


_REWRITTEN = {MATMUL: _product, CONV2D: _pointwise}


def _rewritten(op: Op, rows: Operand, order: tuple[int, ...]) -> _Rewritten | None:
    """The op as the product of `rows` [..., M, K]; None where they do not suit it."""
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
    return _Rewritten(left_op, product, order)
