"""Control flow stays with XLA; what it repeats, chooses or maps is tiled: each body that is worth it becomes one `aspen_call`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Any

from jax.extend import core

from aspen_jax import cost
from aspen_jax.choices import Choices
from aspen_jax.primitive import aspen_call_p, parameters, prune, why_inlined

# Parameters that hold the bodies.
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",), "shard_map": ("jaxpr",)}


def is_control_flow(equation: core.JaxprEqn) -> bool:
    """Whether the equation runs bodies that may be tiled."""
    return equation.primitive.name in _BODIES


def with_tiled_bodies(equation: core.JaxprEqn, *, choices: Choices) -> core.JaxprEqn:
    """The equation with each body that is worth a custom call as one `aspen_call`."""
    changes = {}
    for name in _BODIES[equation.primitive.name]:
        bodies = equation.params[name]
        several = isinstance(bodies, tuple)
        tiled = tuple(_tiled(body, choices) for body in (bodies if several else (bodies,)))
        changes[name] = tiled if several else tiled[0]
    return equation.replace(params={**equation.params, **changes})


def tiled_bodies(equation: core.JaxprEqn) -> Iterator[core.ClosedJaxpr]:
    """The jaxprs that the equation's bodies call through `aspen_call`."""
    for body in core.jaxprs_in_params(equation.params):
        for inner in body.eqns:
            if inner.primitive is aspen_call_p:
                yield inner.params["call_jaxpr"]


def _tiled(body: Any, choices: Choices) -> Any:
    """The body (closed, or open as that of shard_map) with all that it computes in one `aspen_call`."""
    closed = body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, ())
    if (body is not closed and body.constvars) or not _is_worth_it(closed):
        return body
    jaxpr = closed.jaxpr
    given = {*jaxpr.constvars, *jaxpr.invars}
    # Each computed value once; what is handed through stays outside.
    first = {}
    for index, outvar in enumerate(jaxpr.outvars):
        if not isinstance(outvar, core.Literal) and outvar not in given:
            first.setdefault(outvar, index)
    wanted = set(first.values())
    called, used = prune(closed, [index in wanted for index in range(len(jaxpr.outvars))])
    equation = jaxpr.eqns[0].replace(
        primitive=aspen_call_p,
        invars=list(compress(jaxpr.invars, used)),
        outvars=list(first),
        params=parameters(called, choices=choices),
        effects=set(),
    )
    tiled = jaxpr.replace(eqns=[equation])
    return closed.replace(jaxpr=tiled) if body is closed else tiled


def _is_worth_it(body: core.ClosedJaxpr) -> bool:
    return why_inlined(body) is None and cost.is_worth_a_call(body.jaxpr.eqns)
