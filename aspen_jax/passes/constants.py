"""Stores constants once in the order in which products and convolutions read them.

A device may read operands in vectors. Where the columns of a product are no whole vectors, such as the 50257 words of GPT-2, but
the depth is, each column then lies along the depth. So nothing is padded, and exactly the columns that there are get stored.
Weights that are arguments stay as they are: another order would copy them in each call.
"""

from __future__ import annotations

import math

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.passes import storage


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Constants that another order suits better are stored in that order; copies made for their readers go."""

    def read_in(op: Op, index: int) -> storage.Order:
        return _order(op, index, machine)

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


def _order(op: Op, index: int, machine: Machine) -> storage.Order:
    """In which order the dimensions of a weight are best read: columns before the depth, where only that is whole vectors."""
    weights = op.inputs[index]
    as_it_is = tuple(range(len(weights.shape)))
    if op.family is not MATMUL or (vector := machine.whole_vector(op)) == 1:
        return as_it_is
    columns = tuple(d for d, label in enumerate(op.attrs.b) if label >= 0 and label not in op.attrs.a)
    summed = tuple(d for d, label in enumerate(op.attrs.b) if label < 0)
    rows = zip(op.inputs[0].view.strides(), op.attrs.a, strict=True)
    has_vectors = math.prod(weights.shape[d] for d in summed) % vector == 0 and 1 in (step for step, label in rows if label < 0)
    if not columns or weights.shape[columns[-1]] % vector == 0 or not has_vectors:
        return as_it_is
    return (*(d for d in as_it_is if d not in (*columns, *summed)), *columns, *summed)
