"""Runs a convolution and the depthwise one that reads it as one op, where the value between is too large for the caches."""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Op, Program, Value
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_pair import BETWEEN_FLOATS, CONV2D_PAIR, Conv2DPairAttrs

# A smaller value is still in the L2 caches when it is read.
_SMALLEST_BETWEEN = 1 << 20


def run(program: Program) -> Program:
    """Join each depthwise convolution with the op before it, if that is a convolution that nothing else reads."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    ops: dict[Value, Op] = {}
    for op in program.ops:
        first = ops.get(op.inputs[0].value) if op.family is CONV2D else None
        if first is not None and readers[first.output] == 1 and _pays(first, op):
            del ops[first.output]
            op = _joined(first, op)
        ops[op.output] = op
    return program.replace(ops=tuple(ops.values()))


def _pays(first: Op, second: Op) -> bool:
    between = first.output
    if first.family is not CONV2D or first.attrs.groups > 1 or not second.inputs[0].is_whole:
        return False
    depthwise = second.attrs.groups == between.shape[3] == second.output.shape[3]
    # A first convolution of larger windows would be computed again for the rows that two tiles share.
    pointwise = first.inputs[1].shape[:2] == (1, 1)
    reach = (second.inputs[1].shape[0] - 1) * second.attrs.dilation[0] + 1
    fits = (reach + second.attrs.strides[0]) * between.shape[2] * between.shape[3] <= BETWEEN_FLOATS
    large = between.nbytes // max(between.shape[0], 1) >= _SMALLEST_BETWEEN
    return depthwise and pointwise and fits and large and between.dtype == np.float32


def _joined(first: Op, second: Op) -> Op:
    words = (tuple(CONV2D.params(part)) for part in (first, second))
    attrs = Conv2DPairAttrs(first.output.shape[1:], len(first.inputs), *words)
    return Op(
        CONV2D_PAIR,
        attrs,
        (*first.inputs, *second.inputs[1:]),
        second.output,
        name=f"{first.name} + {second.name}",
        source=first.source,
        exact=first.exact or second.exact,
    )
