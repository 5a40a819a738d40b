"""Stores the known weights of a convolution as a library wants them, where that was timed to be the fastest (cuda/cudnn.py)."""

from __future__ import annotations

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Operand, Program
from aspen_jax.ir.view import View
from aspen_jax.passes import storage

# [KH, KW, C, O] is stored as [O, KH, KW, C].
_ORDER = (3, 0, 1, 2)
_INVERSE = (1, 2, 3, 0)


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Store those weights again. Who else reads them finds them as they were."""
    constants, ops = storage.Constants(program), []
    for op in program.ops:
        weights = constants.source(op.inputs[1]) if machine.wants_filters(op) else None
        if weights is not None:
            made = constants.stored(weights, lambda array: np.transpose(array, _ORDER), ("filters", _ORDER))
            operand = Operand(made.value, View.identity(made.value.shape).transpose(_INVERSE))
            op = op.replace(inputs=(op.inputs[0], operand, *op.inputs[2:]))
        ops.append(op)
    return program.replace(ops=tuple(ops), constants=constants.all())
