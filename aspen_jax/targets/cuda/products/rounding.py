"""Which products of float32 warpgroups can multiply once their columns are rounded and lie along the depth (passes/tf32.py)."""

from __future__ import annotations

import math

import numpy as np

from aspen_jax.ir.program import Op, Value
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.tf32 import RoundedInput, with_rounded
from aspen_jax.targets.cuda.products.matrices import Matrices
from aspen_jax.targets.cuda.products.problem import Problem

# The dimensions of weights [KH, KW, C, O] as columns along the depth.
_OF_WEIGHTS = (3, 0, 1, 2)


def rounded_input(op: Op) -> RoundedInput | None:
    """Which input holds the columns of a product or convolution, and how it must lie; None where warps multiply it anyway."""
    if op.exact or op.rounded or op.family not in (MATMUL, CONV2D) or any(item.dtype != np.float32 for item in op.main_inputs):
        return None
    found = RoundedInput(1, _OF_WEIGHTS) if op.family is CONV2D else _columns(op)
    if found is None:
        return None
    operand = op.inputs[found.number]
    if math.prod(operand.shape) > operand.value.size:
        return None  # it repeats elements
    stored = Value(tuple(operand.shape[axis] for axis in found.order), operand.dtype)
    problem = Problem.of(with_rounded(op, found.number, stored, found.order))
    return found if problem is not None and problem.by_warpgroups else None


def _columns(op: Op) -> RoundedInput | None:
    """The right operand of a product: matrices, then columns, then what is summed in the order in which rows are walked."""
    matrices = Matrices.of(op)
    if matrices is None or matrices.column is None:
        return None
    own, others = (op.attrs.b, op.attrs.a) if matrices.right.number == 1 else (op.attrs.a, op.attrs.b)
    steps = dict(zip(others, matrices.left.operand.view.strides(), strict=True))

    def place(axis: int) -> tuple[int, int]:
        label = own[axis]
        return (2, -abs(steps[label])) if label < 0 else (int(label == matrices.column), axis)

    return RoundedInput(matrices.right.number, tuple(sorted(range(len(own)), key=place)))
