"""Rounds known weights to TF32 where a GPU's warpgroups multiply float32.

Tensor cores cut the last 13 bits of float32 off; we round them. Warps do so whenever they read an element. The instruction of a
warpgroup reads columns from shared memory by itself. So these are rounded when they become known, and stored along the depth,
the only order in which it takes float32. Both give the same numbers.

Who reads a value otherwise needs all of its bits: then it stays as it is, and so do arguments.
"""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program
from aspen_jax.ops.tf32 import RoundedInput, rounded, with_rounded
from aspen_jax.passes import storage
from aspen_jax.targets.cuda.price import Gpu


def run(program: Program, machine: Gpu) -> Program:
    """Round the weights that nobody needs in full."""
    wanted = {op: found for op in program.ops if (found := machine.rounded_input(op)) is not None}
    if not wanted:
        return program
    known = {value for value, _ in program.constants} - _needed_in_full(program, wanted)
    constants, ops = storage.Constants(program), []
    for op in program.ops:
        found = wanted.get(op)
        if found is not None and op.inputs[found.number].value in known:
            made = _stored(constants, op.inputs[found.number], found.order)
            op = with_rounded(op, found.number, made.value, found.order)
        ops.append(op)
    return program.replace(ops=tuple(ops), constants=constants.all())


def _needed_in_full(program: Program, wanted: dict[Op, RoundedInput]) -> set:
    """The values that are an output, or that an op reads that does not round them."""
    full = {operand.value for operand in program.outputs}
    for op in program.ops:
        found = wanted.get(op)
        full.update(item.value for number, item in enumerate(op.inputs) if found is None or number != found.number)
    return full


def _stored(constants: storage.Constants, operand: Operand, order: storage.Order) -> Operand:
    return constants.stored(operand, lambda array: rounded(np.transpose(array, order)), ("tf32", order))
