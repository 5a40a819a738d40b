"""Stores constants once in the order in which products read them in whole vectors.

Where the columns of a product are no whole vectors, such as the 50257 words of GPT-2, but the depth is, each column then lies
along the depth. So nothing is padded, and exactly the columns that there are get stored.
"""

from __future__ import annotations

import math

from aspen_jax.ir.program import Op, Program
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.passes import constants, storage
from aspen_jax.targets.cuda.price import Gpu


def run(program: Program, machine: Gpu) -> Program:
    """Store the constants that another order suits better."""
    return constants.run(program, lambda op, index: _order(op, index, machine))


def _order(op: Op, index: int, machine: Gpu) -> storage.Order:
    """The order in which a weight's dimensions are best read: columns first where only the depth is whole vectors."""
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
