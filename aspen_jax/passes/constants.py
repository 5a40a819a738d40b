"""Stores constants once in the order in which products and convolutions read them.

Weights that are arguments stay as they are: another order would copy them in each call.
"""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.passes import storage


def run(program: Program, read_in: storage.ReadIn = storage.as_it_is) -> Program:
    """Constants that another order suits better are stored in that order; copies made for their readers go.

    `read_in`: see `storage.best_orders`.
    """
    orders = storage.best_orders(program, {value for value, _ in program.constants}, read_in)
    for value, order in orders.items():
        program = _stored(program, value, order) or program
    return program


def _stored(program: Program, value: Value, order: storage.Order) -> Program | None:
    arrays = dict(program.constants)
    new = Value(tuple(value.shape[axis] for axis in order), value.dtype)
    copied = storage.copies(program)
    ops: list[Op] = []
    for op in program.ops:
        inputs: list[Operand] = []
        for operand in op.inputs:
            source = storage.behind_copy(operand, copied)
            if source.value is value:
                again = storage.stored(source, new, order)
                if again is None:
                    return None
                # A copy stays where it still puts something in order.
                direct = source is operand or again.view.is_dense()
                inputs.append(again if direct else operand)
            else:
                inputs.append(operand)
        ops.append(op.replace(inputs=tuple(inputs)))
    if any(operand.value is value for operand in program.outputs):
        return None
    array = np.ascontiguousarray(np.transpose(arrays.pop(value), order))
    return program.replace(ops=tuple(ops), constants=(*arrays.items(), (new, array)))
