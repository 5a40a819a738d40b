"""Rewrites the bodies of loops as programs of their own, and moves what is the same in each turn out of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from aspen_jax.cost.loops import shared
from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY
from aspen_jax.ops.loop import LOOP

LEFT_OUT = ("stacks", "split_depth", "partial_reduce", "last_op", "in_place")
"""Passes that make what cannot be a part of a loop."""


def run(program: Program, rewrite: Callable[[Program], Program], machine: Machine | None) -> Program:
    """Rewrite the body of each loop.

    Args:
        program: what may have loops.
        rewrite: gives a body after all passes but LEFT_OUT.
        machine: the cost model that says what of a turn is worth sharing; None: nothing is.
    """
    if not any(op.family is LOOP for op in program.ops):
        return program
    ops: list[Op] = []
    constants: dict[Value, np.ndarray] = dict(program.constants)
    for op in program.ops:
        if op.family is not LOOP:
            ops.append(op)
            continue
        body = rewrite(op.attrs.body)
        constants.update(body.constants)
        *outside, loop = _without_what_repeats(op, body)
        ops += outside
        ops.append(loop if machine is None else loop.replace(attrs=shared(loop.attrs, machine)))
    return program.replace(ops=tuple(ops), constants=tuple(constants.items()))


def _without_what_repeats(op: Op, body: Program) -> Iterator[Op]:
    """What a loop computes of its constants alone, before it; then the loop, which gets that and the body's constants."""
    attrs = op.attrs
    given = body.inputs[: attrs.num_constants]
    outside: dict[Value, Operand] = {value: Operand.whole(value) for value, _ in body.constants}
    outside.update(zip(given, op.inputs, strict=False))
    results = {item.value for item in body.outputs}
    kept = []
    for own in body.ops:
        if not all(item.value in outside for item in own.inputs) or not results.isdisjoint(own.outputs):
            kept.append(own)
            continue
        inputs = []
        for item in own.inputs:
            there = outside[item.value]
            view = there.view.compose(item.view)
            if view is None:
                copy = Op(BLOCK, None, (there,), Value(there.shape, there.dtype), COPY, own.name, own.source)
                yield copy
                there, view = Operand.whole(copy.output), item.view
                outside[item.value] = there
            inputs.append(Operand(there.value, view))
        yield own.replace(inputs=tuple(inputs))
        outside.update((value, Operand.whole(value)) for value in own.outputs)
    read = {item.value for own in kept for item in own.inputs}
    constants = [value for value in outside if value in read]
    rest = body.inputs[attrs.num_constants :]
    body = body.replace(inputs=(*constants, *rest), constants=(), ops=tuple(kept))
    inputs = (*(outside[value] for value in constants), *op.inputs[attrs.num_constants :])
    yield op.replace(attrs=dataclasses.replace(attrs, num_constants=len(constants), body=body), inputs=inputs)
