"""Control flow stays with XLA; what it repeats, chooses or maps is tiled: each body that is worth it becomes one `aspen_call`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

import jax
from jax.extend import core

from aspen_jax.cost import equations as cost
from aspen_jax.frontend.loops import scan_arguments
from aspen_jax.primitive.choices import Choices
from aspen_jax.primitive.primitive import aspen_call_p, parameters, prune, why_inlined

TOO_LITTLE = "too little work for tiles"

# Parameters that hold the bodies. Calls are inlined, but for those that say how devices share arguments or results.
_BODIES = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "shard_map": ("jaxpr",),
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
}


# What a tile reads in place.
_VIEWS = ("broadcast_in_dim", "expand_dims", "reshape", "rev", "slice", "split", "squeeze", "transpose")

# Of a while loop's bodies, which parameter says how many of the first arguments are the same in each turn.
_NUM_CONSTANTS = {"cond_jaxpr": "cond_nconsts", "body_jaxpr": "body_nconsts"}


def is_control_flow(equation: core.JaxprEqn) -> bool:
    """Whether the equation runs bodies that may be tiled."""
    return equation.primitive.name in _BODIES


def is_loop(equation: core.JaxprEqn) -> bool:
    """Whether the equation runs its bodies again and again."""
    return equation.primitive.name in ("scan", "while")


def has_computations(equation: core.JaxprEqn) -> bool:
    """Whether the bodies are computations of their own to XLA. It inlines others."""
    return is_loop(equation) or equation.primitive.name == "cond"


def with_tiled_bodies(
    equation: core.JaxprEqn, *, choices: Choices, why_left: Callable[[core.ClosedJaxpr], str | None]
) -> tuple[core.JaxprEqn, tuple[str, ...]]:
    """The equation with each body that is worth a custom call as one `aspen_call`, and why the others are not.

    Args:
        equation: control flow.
        choices: what the decorator was told, for the bodies.
        why_left: why tiles run nothing of what would be called, or None where they run some.
    """
    changes = {}
    reasons: list[str] = []
    for name in _BODIES[equation.primitive.name]:
        bodies = equation.params[name]
        several = isinstance(bodies, tuple)
        constants = _num_constants(equation, name)
        tiled = []
        for body in bodies if several else (bodies,):
            tiled_body, reason = _tiled(body, choices, why_left, constants)
            tiled.append(tiled_body)
            reasons += [reason] if reason else []
        changes[name] = tuple(tiled) if several else tiled[0]
    return equation.replace(params={**equation.params, **changes}), tuple(reasons)


def _num_constants(equation: core.JaxprEqn, body: str) -> int:
    """How many of the first arguments of a body are the same in each turn."""
    params = equation.params
    if equation.primitive.name == "while":
        return params[_NUM_CONSTANTS[body]]
    return scan_arguments(equation)[0] if equation.primitive.name == "scan" else 0


def tiled_bodies(equation: core.JaxprEqn) -> Iterator[core.ClosedJaxpr]:
    """The jaxprs that the equation's bodies call through `aspen_call`."""
    for body in core.jaxprs_in_params(equation.params):
        for inner in body.eqns:
            if inner.primitive is aspen_call_p:
                yield inner.params["call_jaxpr"]


def _tiled(
    body: Any, choices: Choices, why_left: Callable[[core.ClosedJaxpr], str | None], num_constants: int
) -> tuple[Any, str | None]:
    """The body (closed, or open as that of shard_map) with what it computes in one `aspen_call`; or as it is, and why.

    What a loop's body computes of the loop's constants alone stays outside of the call, for XLA to hoist it out of the loop.
    """
    closed = body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, ())
    if body is not closed and body.constvars:
        return body, "a body closes over arrays"
    reason = why_inlined(closed)
    if reason is not None:
        return body, f"a body {reason}"
    if not cost.is_worth_a_call(closed.jaxpr.eqns):
        return body, TOO_LITTLE
    jaxpr = closed.jaxpr
    hoisted = _invariant(jaxpr, num_constants)
    outside = [outvar for equation in hoisted for outvar in equation.outvars]
    given = {*jaxpr.constvars, *jaxpr.invars, *outside}
    # Each computed value once; what is handed through stays outside.
    wanted = list(dict.fromkeys(var for var in jaxpr.outvars if not isinstance(var, core.Literal) and var not in given))
    operands = [*jaxpr.invars, *outside]
    kept = set(map(id, hoisted))
    rest = [equation for equation in jaxpr.eqns if id(equation) not in kept]
    debug_info = core.DebugInfo("aspen_call", "body", None, None)
    inner = jaxpr.replace(invars=operands, outvars=wanted, eqns=rest, debug_info=debug_info)
    called, used = prune(core.ClosedJaxpr(inner, closed.consts), [True] * len(wanted))
    reason = why_left(called) if wanted else TOO_LITTLE
    if reason is not None:
        return body, reason
    equation = _equation_of_call(rest[0], list(compress(operands, used)), wanted, parameters(called, choices=choices))
    tiled = jaxpr.replace(eqns=[*hoisted, equation])
    return (closed.replace(jaxpr=tiled) if body is closed else tiled), None


def _equation_of_call(first: core.JaxprEqn, invars: list[Any], outvars: list[Any], params: dict[str, Any]) -> core.JaxprEqn:
    """The equation of a body's call, which begins where the first equation did.

    That one may be of another mesh than the body, as inside `jax.sharding.auto_axes`. What the call takes and gives is of the
    body's mesh.
    """
    meshes = (var.aval.sharding.mesh for var in (*invars, *outvars) if hasattr(var.aval, "sharding"))
    mesh = next((mesh for mesh in meshes if not mesh.empty), None)
    with contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh):
        return core.new_jaxpr_eqn(invars, outvars, aspen_call_p, params, core.no_effects, first.source_info)


def _invariant(jaxpr: core.Jaxpr, num_constants: int) -> list[core.JaxprEqn]:
    """The equations that XLA hoists out of a loop (`WhileLoopInvariantCodeMotion`).

    They give the same in each turn, and no more bytes than they read. Mere views are hoisted only where others read them.
    """
    known = set(jaxpr.invars[:num_constants])
    found = []
    for equation in jaxpr.eqns:
        read = [atom for atom in equation.invars if not isinstance(atom, core.Literal)]
        grows = sum(_nbytes(var) for var in equation.outvars) > sum(map(_nbytes, read))
        if read and not equation.effects and not grows and known.issuperset(read):
            found.append(equation)
            known.update(equation.outvars)
    wanted: set[Any] = set()
    kept = []
    for equation in reversed(found):
        if equation.primitive.name not in _VIEWS or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(atom for atom in equation.invars if not isinstance(atom, core.Literal))
    return kept[::-1]


def _nbytes(var: Any) -> int:
    return getattr(var.aval, "size", 0) * getattr(getattr(var.aval, "dtype", None), "itemsize", 0)
