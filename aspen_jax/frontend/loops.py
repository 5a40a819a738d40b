"""Loops whose bodies tiles can run as a whole: `scan` as one op, with what does not depend on the carries moved out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from aspen_jax.frontend.partition import Tileable
from aspen_jax.ir.program import Operand, Value
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.converters import Unsupported
from aspen_jax.ops.loop import MOST_SCRATCH, LoopAttrs, loop_of, scratch_bytes


def scan_arguments(equation: core.JaxprEqn) -> tuple[int, int]:
    """How many of a scan's first arguments are the same in each step, and how many of the next ones are carried."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # JAX 0.12
    return len(constants), len(carry)


SCAN = "scan"

Trace = Callable[[core.ClosedJaxpr, Sequence[Value | np.ndarray]], Tileable]
"""`trace(body, arguments)`: the body, with a program of the arguments that are values. Raises Unsupported."""


def scan(
    equation: core.JaxprEqn, operands: Sequence[Operand | np.ndarray], build: Builder, trace: Trace
) -> tuple[list[Operand], Tileable]:
    """Write a scan as one op, and give its results and its body.

    Args:
        equation: the scan.
        operands: its operands; arrays are known when tracing.
        build: gets the op.
        trace: converts the body.

    Raises:
        Unsupported: some of the body stays with XLA, or it is no work for one worker.
    """
    params = equation.params
    num_constants, num_carries = scan_arguments(equation)
    body: core.ClosedJaxpr = params["jaxpr"]
    avals = [var.aval for var in body.jaxpr.invars]
    once = num_constants + num_carries
    # Of what is known, scalars are written into the body, where they are the same in each turn.
    arguments: list[Value | np.ndarray] = []
    for number, (item, aval) in enumerate(zip(operands, avals, strict=True)):
        is_scalar = number < num_constants and isinstance(item, np.ndarray) and item.ndim == 0
        arguments.append(np.asarray(item) if is_scalar else Value(tuple(aval.shape), np.dtype(aval.dtype)))
    traced = trace(body, arguments)
    program = traced.program
    kept = [number for number, item in enumerate(arguments) if isinstance(item, Value)]
    attrs = LoopAttrs(params["length"], params["reverse"], sum(number < num_constants for number in kept), num_carries, program)
    if scratch_bytes(program) > MOST_SCRATCH:
        raise Unsupported("a turn of the loop computes more than one worker's cache holds")
    first, *_ = program.outputs
    if 0 in first.shape or not attrs.turns:
        raise Unsupported("the loop has no turn, or its first result is empty")
    inputs = [_operand(build, operands[number]) for number in kept]
    op = loop_of(attrs, inputs, name=build.name, source=build.source, exact=any(op.exact for op in program.ops))
    build.add(op)
    return [Operand.whole(value) for value in op.outputs], traced


def _operand(build: Builder, item: Operand | np.ndarray) -> Operand:
    return item if isinstance(item, Operand) else build.constant(item)


def with_products_before(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """A scan whose products of what is known before it are computed before it, for all turns at once; None where it has none.

    Args:
        equation: the scan. The result takes its operands and gives its results.
    """
    body: core.ClosedJaxpr = equation.params["jaxpr"]
    num_constants, num_carries = scan_arguments(equation)
    moved = _known_products(body.jaxpr, num_constants, num_carries)
    if not moved:
        return None
    length, jaxpr = equation.params["length"], body.jaxpr
    once = num_constants + num_carries
    by_turn = {var for own in moved for var in own.outvars}
    kept = [own for own in jaxpr.eqns if by_turn.isdisjoint(own.outvars)]
    read = {atom for own in kept for atom in own.invars if isinstance(atom, core.Var)}
    read.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    crossing = [var for own in moved for var in own.outvars if var in read]
    # What reads constants alone is computed on both sides. passes/loops.py moves it out of the loop.
    needed = _needed([*_of_constants(jaxpr, num_constants), *moved], crossing)
    of_turn = core.ClosedJaxpr(
        jaxpr.replace(
            invars=[*jaxpr.invars[:num_constants], *jaxpr.invars[once:]], outvars=crossing, eqns=needed, debug_info=_INFO
        ),
        body.consts,
    )
    rest = core.ClosedJaxpr(
        jaxpr.replace(invars=[*jaxpr.invars, *crossing], eqns=kept, debug_info=_INFO), body.consts
    )

    def run(*operands: Any) -> list[Any]:
        constants, carries, entries = operands[:num_constants], operands[num_constants:once], operands[once:]
        in_axes = (*(None for _ in constants), *(0 for _ in entries))
        known = jax.vmap(core.jaxpr_as_fun(of_turn), in_axes=in_axes, axis_size=length)(*constants, *entries)

        def turn(carries: Sequence[Any], entries: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            results = core.jaxpr_as_fun(rest)(*constants, *carries, *entries)
            return results[:num_carries], results[num_carries:]

        last, stacked = jax.lax.scan(
            turn, list(carries), [*entries, *known], length=length, reverse=equation.params["reverse"]
        )
        return [*last, *stacked]

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
    return jax.make_jaxpr(run)(*avals)


_INFO = core.DebugInfo("aspen_call", "body", None, None)


def _known_products(jaxpr: core.Jaxpr, num_constants: int, num_carries: int) -> list[core.JaxprEqn]:
    """The products of a scan's body that no carry changes, with the equations that they need, in order."""
    changing = set(jaxpr.invars[num_constants : num_constants + num_carries])
    entries = set(jaxpr.invars[num_constants + num_carries :])
    known = []
    for own in jaxpr.eqns:
        read = {atom for atom in own.invars if isinstance(atom, core.Var)}
        if own.effects or not read.isdisjoint(changing):
            changing.update(own.outvars)
        elif not read.isdisjoint(entries):
            entries.update(own.outvars)
            known.append(own)
    products = [own for own in known if own.primitive.name in _PRODUCTS]
    return _needed(known, [var for own in products for var in own.outvars])


def _of_constants(jaxpr: core.Jaxpr, num_constants: int) -> list[core.JaxprEqn]:
    """What a scan's body computes of its constants alone."""
    known = {*jaxpr.constvars, *jaxpr.invars[:num_constants]}
    found = []
    for own in jaxpr.eqns:
        if not own.effects and known.issuperset(atom for atom in own.invars if isinstance(atom, core.Var)):
            known.update(own.outvars)
            found.append(own)
    return found


def _needed(equations: Sequence[core.JaxprEqn], results: Iterable[core.Var]) -> list[core.JaxprEqn]:
    """The equations that results need, in order."""
    wanted = set(results)
    needed = []
    for own in reversed(equations):
        if not wanted.isdisjoint(own.outvars):
            wanted.update(atom for atom in own.invars if isinstance(atom, core.Var))
            needed.append(own)
    return needed[::-1]


_PRODUCTS = ("dot_general", "conv_general_dilated")
