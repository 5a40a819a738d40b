"""Products as those of two matrices, where they are that: for the passes that give them other algorithms."""

from __future__ import annotations

import math
from typing import NamedTuple

from aspen_jax.ir.program import Op, Operand
from aspen_jax.ops.matmul import MATMUL


class Matrices(NamedTuple):
    """The operands of a product.

    Attributes:
        rows: the left one, [..., M, K], with adjacent elements of K.
        order: that of the right one's dimensions in which they are the rows and the columns of a matrix [K, N].
    """

    rows: Operand
    order: tuple[int, ...]


def of_product(op: Op) -> Matrices | None:
    """The matrices of a product whose output is [..., M, N], with the columns of its right operand last; None for other ops."""
    if op.family is not MATMUL or not op.output.shape:
        return None
    a, b, shape = op.attrs.a, op.attrs.b, op.output.shape
    lead = tuple(range(len(shape) - 1))
    if b[-1] != len(lead) or any(label >= 0 for label in b[:-1]) or {label for label in a if label >= 0} != set(lead):
        return None
    rows, weights = op.main_inputs
    # The inner dimensions may come in any order, if it is the same on both sides: in that in which rows are adjacent.
    strides = rows.view.strides()
    inner = sorted((label for label in a if label < 0), key=lambda label: -strides[a.index(label)])
    size = math.prod(weights.shape[:-1])
    view = rows.view.transpose([a.index(label) for label in (*lead, *inner)]).reshape((*shape[:-1], size))
    if view is None or size == 0 or (size > 1 and view.strides()[-1] != 1):
        return None
    return Matrices(Operand(rows.value, view), tuple(b.index(label) for label in (*inner, b[-1])))
