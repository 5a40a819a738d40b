"""Removes what need not be computed.

That is repeated ops and small constants, copies of whole values, zero padding in front of a convolution, the conversion to
float32 of what a kernel widens by itself, and concatenations of concatenations.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.concatenate import CONCATENATE
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.pad import PAD
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.ragged_dot import RAGGED_DOT
from aspen_jax.ops.reduce import REDUCE

_WIDENING = (CONV2D, MATMUL, RAGGED_DOT, POOL, REDUCE)
# Equal constants up to this size become one, so that ops that read them are seen to be equal.
_LARGEST_CONSTANT = 1 << 16
# Of a concatenation: each tile waits for those of all pieces.
_MOST_PIECES = 64


def run(program: Program) -> Program:
    """One sweep in program order."""
    same = _equal_constants(program)
    known: dict[tuple, tuple[Value, ...]] = {}
    producers: dict[Value, Op] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = op.replace(inputs=tuple(Operand(same.get(item.value, item.value), item.view) for item in op.inputs))
        if _is_alias(op):
            same[op.output] = op.inputs[0].value
            continue
        key = (op.family.name, op.attrs, op.inputs, op.program, op.output.shape, op.output.dtype, len(op.outputs), op.exact)
        if key in known:
            same.update(zip(op.outputs, known[key], strict=True))
            continue
        known[key] = op.outputs
        op = _flattened(_without_widening(_without_padding(op, producers), producers), producers)
        producers[op.output] = op
        ops.append(op)
    outputs = tuple(Operand(same.get(item.value, item.value), item.view) for item in program.outputs)
    return program.replace(ops=tuple(ops), outputs=outputs)


def _equal_constants(program: Program) -> dict[Value, Value]:
    """Small constants that repeat an earlier one, each with that earlier one."""
    same: dict[Value, Value] = {}
    known: dict[tuple, Value] = {}
    for value, array in program.constants:
        if value.nbytes <= _LARGEST_CONSTANT:
            first = known.setdefault((value.shape, value.dtype, np.asarray(array).tobytes()), value)
            if first is not value:
                same[value] = first
    return same


def _is_alias(op: Op) -> bool:
    """Whether the op copies a whole value."""
    copies = op.family is BLOCK and op.program is not None and op.program.is_copy
    return copies and op.inputs[0].is_whole and op.inputs[0].value.shape == op.output.shape


def _without_padding(op: Op, producers: dict[Value, Op]) -> Op:
    """A convolution of a zero-padded image pads by itself."""
    pad = producers.get(op.inputs[0].value) if op.family is CONV2D else None
    if pad is None or pad.family is not PAD or not op.inputs[0].is_whole or pad.program is not None:
        return op
    attrs = pad.attrs
    if any(attrs.interior) or any(attrs.lo[axis] or attrs.hi[axis] for axis in (0, 3)) or not _is_zero(pad.inputs[1], producers):
        return op
    if min(*attrs.lo, *attrs.hi) < 0:  # cropped rows are not zeros, should the convolution pad as well
        return op
    top, bottom, left, right = op.attrs.padding
    if min(top, bottom, left, right) < 0:
        return op
    padding = (top + attrs.lo[1], bottom + attrs.hi[1], left + attrs.lo[2], right + attrs.hi[2])
    return op.replace(inputs=(pad.inputs[0], *op.inputs[1:]), attrs=dataclasses.replace(op.attrs, padding=padding))


def _without_widening(op: Op, producers: dict[Value, Op]) -> Op:
    """A kernel that computes in float32 reads floats of 16 bits where they are."""
    if op.family not in _WIDENING:
        return op
    count = op.family.num_main(op)
    narrow = [_before_widening(operand, producers) or operand for operand in op.main_inputs]
    # All or none: other kernels of several floats take them of one dtype.
    if op.family not in (MATMUL, RAGGED_DOT) and len({source.dtype for source in narrow}) > 1:
        return op
    return op.replace(inputs=(*narrow, *op.inputs[count:]))


def _before_widening(operand: Operand, producers: dict[Value, Op]) -> Operand | None:
    producer = producers.get(operand.value)
    if producer is None or producer.program is None or not producer.program.is_plain_conversion:
        return None
    (source,) = producer.inputs
    if lane_of(source.dtype) != "f" or operand.dtype != np.float32:
        return None
    view = source.view.compose(operand.view)
    return None if view is None else Operand(source.value, view)


def _flattened(op: Op, producers: dict[Value, Op]) -> Op:
    """A concatenation of the pieces of the concatenations that it reads, which then may be left to readers that change them."""
    if op.family is not CONCATENATE:
        return op
    pieces: list[Operand] = []
    for item in op.inputs:
        inner = producers.get(item.value)
        is_nested = inner is not None and inner.family is CONCATENATE and inner.attrs == op.attrs and item.is_whole
        pieces += inner.inputs if inner is not None and is_nested else [item]
    return op.replace(inputs=tuple(pieces)) if len(pieces) <= _MOST_PIECES else op


def _is_zero(operand: Operand, producers: dict[Value, Op]) -> bool:
    fill = producers.get(operand.value)
    return (
        fill is not None
        and fill.program is not None
        and fill.program.num_inputs == 0
        and not fill.program.instructions
        and fill.program.constants == (0,)
    )
