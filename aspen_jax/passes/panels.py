"""Stores the weights of products in panels, where they are known beforehand (ops/matmul.py).

Constants are stored so once. Other readers than products keep the constant as it is. Weights that `prepare` has stored in panels
arrive as inputs behind the equations that make the array of them again; a product that reads these reads the panels instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.matmul import (
    MATMUL,
    MATMUL_PANELS,
    PANEL,
    MatmulPanelsAttrs,
    panels_shape,
    panels_suit,
    to_panels,
)
from aspen_jax.passes import storage

# Missing columns of the last panel are multiplied too: at most so many for each that is there.
_MOST_MISSING = 0.25


def run(program: Program) -> Program:
    """Let products read panels of constants and of prepared weights."""
    constants, copied = storage.Constants(program), storage.copies(program)
    ops: list[Op] = []
    for op in program.ops:
        attrs = attributes(op)
        if attrs is not None:
            source = constants.source(op.inputs[1])
            rows = panels_shape(attrs)[1]
            if source is None:
                panels = _prepared(op.inputs[1], attrs, copied)
            else:
                panels = constants.stored(source, lambda array, rows=rows: to_panels(array.reshape(rows, -1), np), rows)
            if panels is not None:
                op = op.replace(family=MATMUL_PANELS, attrs=attrs, inputs=(op.inputs[0], panels, *op.inputs[2:]))
        ops.append(op)
    return program.replace(ops=tuple(ops), constants=constants.all())


def attributes(op: Op) -> MatmulPanelsAttrs | None:
    """The attributes of a product in panels, where its right operand is worth storing so; None for other ops."""
    if op.family is not MATMUL or op.inputs[1].dtype != np.float32:
        return None
    attrs = MatmulPanelsAttrs(op.attrs.a, op.attrs.b, op.inputs[1].shape)
    if not panels_suit(attrs.a, attrs.b, len(op.output.shape)) or not math.prod(attrs.shape):
        return None
    columns = math.prod(attrs.shape[attrs.summed :])
    return attrs if -columns % PANEL <= _MOST_MISSING * columns else None


def arrangements(program: Program, values: Collection[Value]) -> dict[Value, storage.Arrangement]:
    """How to store in panels the `values` that are worth it: only products read them, all in one order."""
    uses = program.uses()
    found: dict[Value, storage.Arrangement] = {}
    for value in values:
        wanted = {_arrangement(op, index) for op, index in uses.get(value, [])}
        if len(wanted) == 1 and (arrangement := wanted.pop()) is not None:
            found[value] = arrangement
    return found


def _arrangement(op: Op | None, index: int) -> storage.Arrangement | None:
    """How an input of the op is stored in panels; None where it cannot be, or not so that a view shows it."""
    attrs = attributes(op) if op is not None and index == 1 else None
    order = storage.order_of(op.inputs[1]) if op is not None and attrs is not None else None
    if op is None or attrs is None or order is None:
        return None
    rows = panels_shape(attrs)[1]
    shape = tuple(op.inputs[1].value.shape[axis] for axis in order)
    summed = next((count for count in range(1, len(shape)) if math.prod(shape[:count]) == rows), None)
    is_whole = math.prod(shape) == math.prod(attrs.shape)
    if summed is None or not is_whole or _matrix(attrs, attrs.shape) is None or _matrix(attrs, shape) is None:
        return None
    return storage.Arrangement(order, summed)


def _matrix(attrs: MatmulPanelsAttrs, shape: tuple[int, ...]) -> View | None:
    """The columns that are there of a matrix with all columns of the panels, in this shape."""
    panels, rows, _ = panels_shape(attrs)
    columns = math.prod(attrs.shape) // rows
    return View.identity((rows, panels * PANEL)).slice((0, 0), (rows, columns)).reshape(shape)


def _prepared(operand: Operand, attrs: MatmulPanelsAttrs, copied: dict[Value, Operand]) -> Operand | None:
    """The panels that the operand is made of by `from_panels`."""
    source, shape = copied.get(operand.value), panels_shape(attrs)
    if source is None or source.value.shape != shape or source.view != View.identity(shape).transpose((1, 0, 2)):
        return None
    return Operand.whole(source.value) if operand.view == _matrix(attrs, attrs.shape) else None
