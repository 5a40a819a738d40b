"""A call as one flat list of equations: which values are read behind each of them, and scans taken apart into shorter ones."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend import core, source_info_util

from aspen_jax import forks
from aspen_jax.api.flat import FlatCall
from aspen_jax.errors import InputError
from aspen_jax.frontend.loops import scan_arguments
from aspen_jax.frontend.trace import called_jaxpr

# Calls that stay equations: inlined, they would lose the user's own rule for derivatives, or for batches.
WITH_RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call")

Atom = Any  # a core.Var or a core.Literal


@dataclasses.dataclass(frozen=True, eq=False)
class FlatJaxpr:
    """Equations without calls between them, each variable set once.

    Attributes:
        inputs: a variable for each array of the arguments.
        input_names: their names.
        weights: those of the inputs that are weights, with what was given for them.
        constants: variables known when tracing, with their values. Here as there, arrays of NumPy, which may change, are copies.
        equations: in an order in which they can run.
        outputs: what the function returns, variables or literals.
    """

    inputs: tuple[core.Var, ...]
    input_names: tuple[str, ...]
    weights: dict[core.Var, Any]
    constants: dict[core.Var, Any]
    equations: tuple[core.JaxprEqn, ...]
    outputs: tuple[Atom, ...]

    @forks.cached_property
    def names(self) -> dict[core.Var, str]:
        """A name for each variable that is no constant, in the order in which they are set."""
        found = dict(zip(self.inputs, self.input_names, strict=True))
        for equation in self.equations:
            name = _name(equation)
            several = len(equation.outvars) > 1
            found.update((var, f"{name}.{number}" if several else name) for number, var in enumerate(equation.outvars))
        return found

    def is_held(self, var: core.Var) -> bool:
        """Whether whoever reads the variable has it without being given it: a constant or a weight."""
        return var in self.constants or var in self.weights

    def live(self, positions: Sequence[int]) -> list[tuple[core.Var, ...]]:
        """The variables set before each position and read behind it, in the order in which they are set.

        Position `p` stands before equation `p`. What nobody needs in the end does not count as read; what is held neither.
        """
        order = {var: number for number, var in enumerate(self.names)}
        read = {atom for atom in self.outputs if isinstance(atom, core.Var) and not self.is_held(atom)}
        wanted = set(positions)
        found: dict[int, tuple[core.Var, ...]] = {}
        for number in range(len(self.equations), -1, -1):
            if number < len(self.equations) and _is_needed(self.equations[number], read):
                read.difference_update(self.equations[number].outvars)
                read.update(var for var in _variables(self.equations[number]) if not self.is_held(var))
            if number in wanted:
                found[number] = tuple(sorted(read, key=order.__getitem__))
        return [found[position] for position in positions]


def flatten(call: FlatCall) -> FlatJaxpr:
    """The equations of a call that its results or side effects need.

    Raises:
        InputError: one of them changes a value in place.
    """
    closed = call.jaxpr
    inputs = tuple(core.Var(aval) for aval in closed.in_avals)
    constants: dict[core.Var, Any] = {}
    equations: list[core.JaxprEqn] = []
    outputs = _inline(closed, inputs, source_info_util.new_name_stack(), constants, equations)
    for equation in equations:
        if equation.effects and not all(isinstance(atom.aval, ShapedArray) for atom in (*equation.invars, *equation.outvars)):
            raise InputError(
                f"{call.function.__name__} changes a value in place ({equation.primitive.name}), which no cut can hand on; "
                "compute a new value instead"
            )
    weights = {inputs[index]: _frozen(call.leaves[index], inputs[index].aval) for index in sorted(call.weights)}
    return FlatJaxpr(inputs, call.names, weights, constants, tuple(_needed(equations, outputs)), tuple(outputs))


def closed_over(
    equations: Sequence[core.JaxprEqn], inputs: Sequence[core.Var], outputs: Sequence[Atom], held: dict[core.Var, Any]
) -> core.ClosedJaxpr:
    """What of some equations their outputs or side effects need, as a jaxpr whose constants are those of `held` that it reads."""
    kept = _needed(equations, outputs)
    read = {var for equation in kept for var in _variables(equation)} | {atom for atom in outputs if isinstance(atom, core.Var)}
    constvars = [var for var in held if var in read and var not in inputs]
    effects = frozenset(effect for equation in kept for effect in equation.effects)
    debug_info = core.DebugInfo("cut", "part of a function", None, None)
    jaxpr = core.Jaxpr(constvars, list(inputs), list(outputs), kept, effects, debug_info)
    return core.ClosedJaxpr(jaxpr, [held[var] for var in constvars])


def with_scans_split(jaxpr: FlatJaxpr, places: Sequence[tuple[int, int]]) -> tuple[FlatJaxpr, list[int]]:
    """The same computation with scans taken apart, and the position of each place in it.

    Args:
        jaxpr: the equations.
        places: in rising order, each the number of an equation and how many steps of it come before the place. The number of
            steps is 0 for equations that are no scans, and less than the scan's length.
    """
    equations: list[core.JaxprEqn] = []
    positions = []
    replaced: dict[Any, Atom] = {}
    constants = dict(jaxpr.constants)
    for number in range(len(jaxpr.equations) + 1):
        first, last = bisect.bisect_left(places, (number, 0)), bisect.bisect_left(places, (number + 1, 0))
        steps = [step for _, step in places[first:last]]
        if steps[:1] == [0]:
            positions.append(len(equations))
            del steps[0]
        for equation in jaxpr.equations[number : number + 1]:
            equation = equation.replace(invars=[_replaced(atom, replaced) for atom in equation.invars])
            if not steps:
                equations.append(equation)
                continue
            (needed,) = jaxpr.live([number + 1])
            stays = [not isinstance(atom, core.Var) or atom in needed or jaxpr.is_held(atom) for atom in equation.invars]
            outputs, ends = _split_scan(equation, steps, stays, constants, equations)
            positions += ends
            replaced.update(zip(jaxpr.equations[number].outvars, outputs, strict=True))
    outputs = tuple(_replaced(atom, replaced) for atom in jaxpr.outputs)
    return dataclasses.replace(jaxpr, equations=tuple(equations), outputs=outputs, constants=constants), positions


def _split_scan(
    scan: core.JaxprEqn,
    steps: Sequence[int],
    stays: Sequence[bool],
    constants: dict[core.Var, Any],
    equations: list[core.JaxprEqn],
) -> tuple[list[Atom], list[int]]:
    """Appends shorter scans that give what one does.

    Args:
        scan: the equation.
        steps: how many steps come before each cut.
        stays: for each of its operands, whether all of it is there behind the cuts anyway, so that no slice of it must cross.
        constants: gets the constants of new equations.
        equations: gets the new equations.

    Returns:
        What stands for the scan's outputs, and how many equations there are before each cut.
    """
    length, is_reversed, unroll = (scan.params[name] for name in ("length", "reverse", "unroll"))
    num_consts, num_carry = scan_arguments(scan)
    body = core.jaxpr_as_fun(scan.params["jaxpr"])
    whole = stays[num_consts + num_carry :]

    def piece(consts: Any, carry: Any, xs: Any, before: Any, begin: int, end: int) -> Any:
        """Steps from `begin` to `end`: the carry, what later steps scan over, and all stacked outputs so far."""

        def of_steps(array: Any, is_whole: bool, begin: int, end: int) -> Any:
            size, offset = array.shape[0], 0 if is_whole else done
            bounds = (size - end + offset, size - begin + offset) if is_reversed else (begin - offset, end - offset)
            return lax.slice_in_dim(array, *bounds)

        done = begin
        mine = [of_steps(x, is_whole, begin, end) for x, is_whole in zip(xs, whole, strict=True)]
        rest = [x if is_whole else of_steps(x, False, end, length) for x, is_whole in zip(xs, whole, strict=True)]

        def step(carry: Any, x: Any) -> Any:
            outs = body(*consts, *carry, *x)
            return outs[:num_carry], outs[num_carry:]

        carry, ys = lax.scan(step, carry, mine, length=end - begin, reverse=is_reversed, unroll=unroll)
        if before is None:
            return carry, rest, ys
        pairs = zip(ys, before, strict=True) if is_reversed else zip(before, ys, strict=True)
        return carry, rest, [lax.concatenate(pair, 0) for pair in pairs]

    consts, carry = scan.invars[:num_consts], scan.invars[num_consts : num_consts + num_carry]
    xs, ys = scan.invars[num_consts + num_carry :], None
    ends = []
    for begin, end in itertools.pairwise((0, *steps, length)):
        operands = (list(consts), list(carry), list(xs), ys)
        types = jax.tree.map(lambda atom: _struct(atom.aval), operands)
        traced = jax.make_jaxpr(functools.partial(piece, begin=begin, end=end))(*types)
        found = iter(_inline(traced, jax.tree.leaves(operands), scan.source_info.name_stack, constants, equations))
        carry, xs = [next(found) for _ in carry], [next(found) for _ in xs]
        ys = list(found)
        ends.append(len(equations))
    return [*carry, *(ys or ())], ends[:-1]


def _frozen(value: Any, aval: Any) -> Any:
    """The value, or a copy of an array that its owner may write to: a part may be compiled long after the other."""
    return np.array(value, aval.dtype) if isinstance(value, np.ndarray) else value


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _inline(
    closed: core.ClosedJaxpr,
    arguments: Sequence[Atom],
    stack: Any,
    constants: dict[core.Var, Any],
    equations: list[core.JaxprEqn],
) -> list[Atom]:
    """Appends a jaxpr's equations, with new variables and those of its calls in the calls' place; returns its outputs."""
    environment: dict[Any, Atom] = dict(zip(closed.jaxpr.invars, arguments, strict=True))
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        environment[var] = core.Var(var.aval)
        constants[environment[var]] = _frozen(value, var.aval)
    for equation in closed.jaxpr.eqns:
        inputs = [_replaced(atom, environment) for atom in equation.invars]
        inner = stack + equation.source_info.name_stack
        called = None if equation.primitive.name in WITH_RULES else called_jaxpr(equation)
        if called is not None:
            outputs = _inline(called, inputs, inner, constants, equations)
        else:
            outputs = [core.Var(var.aval) for var in equation.outvars]
            source = equation.source_info.replace(name_stack=inner)
            equations.append(equation.replace(invars=inputs, outvars=outputs, source_info=source))
        environment.update(zip(equation.outvars, outputs, strict=True))
    return [_replaced(atom, environment) for atom in closed.jaxpr.outvars]


def _needed(equations: Sequence[core.JaxprEqn], outputs: Sequence[Atom]) -> list[core.JaxprEqn]:
    read = {atom for atom in outputs if isinstance(atom, core.Var)}
    kept = []
    for equation in reversed(equations):
        if _is_needed(equation, read):
            kept.append(equation)
            read.update(_variables(equation))
    return kept[::-1]


def _is_needed(equation: core.JaxprEqn, read: set[core.Var]) -> bool:
    return bool(equation.effects) or not read.isdisjoint(equation.outvars)


def _variables(equation: core.JaxprEqn) -> list[core.Var]:
    return [atom for atom in equation.invars if isinstance(atom, core.Var)]


def _replaced(atom: Atom, by: dict[Any, Atom]) -> Atom:
    return by.get(atom, atom) if isinstance(atom, core.Var) else atom


def _name(equation: core.JaxprEqn) -> str:
    """The named scope, and the primitive or the function that a custom rule belongs to."""
    called = called_jaxpr(equation) if equation.primitive.name in WITH_RULES else None
    own = equation.primitive.name if called is None else called.jaxpr.debug_info.func_name
    return "/".join(part for part in (str(equation.source_info.name_stack), own) if part)
