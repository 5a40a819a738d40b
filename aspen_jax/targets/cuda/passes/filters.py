"""Stores the known weights of a convolution as cuDNN wants them, where that was timed to be the fastest."""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Operand, Program
from aspen_jax.passes import storage
from aspen_jax.targets.cuda.library.cudnn import filter_order


def run(program: Program) -> Program:
    """Store those weights again. Who else reads them finds them as they were.

    A convolution whose result the caller wants in another order stays as it is: the pass `last_op` makes it write so.
    """
    transposed = {operand.value for operand in program.outputs if not operand.view.is_dense()}
    constants, ops = storage.Constants(program), []
    for op in program.ops:
        order = None if op.output in transposed else filter_order(op)
        weights = None if order is None else constants.source(op.inputs[1])
        if order is not None and weights is not None:
            made = constants.stored(weights, lambda array, order=order: np.transpose(array, order), ("filters", order))
            op = op.replace(inputs=(op.inputs[0], Operand.permuted(made.value, order), *op.inputs[2:]))
        ops.append(op)
    return program.replace(ops=tuple(ops), constants=constants.all())
