"""Evaluates a jaxpr equation by equation, inside of the functions that it calls too.

JAX looks for NaN behind each operation that it evaluates (`jax_debug_nans`). What it finds behind a function of `jax.jit` is an
error of JAX's own kind, which only `jax.jit` itself makes a `FloatingPointError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import core
from jax.extend.core import DebugInfo, Jaxpr, JaxprEqn, Literal, Var

from aspen_jax.frontend.trace import called_jaxpr


def evaluate(jaxpr: Jaxpr, consts: Sequence[Any], *arguments: Any) -> list[Any]:
    """What the jaxpr gives for arrays."""
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in jaxpr.eqns:
        called = called_jaxpr(equation)
        if called is None:
            results = _evaluate_one(equation, values)
        else:
            results = evaluate(called.jaxpr, called.consts, *(_read(atom, values) for atom in equation.invars))
        values.update(zip(equation.outvars, results, strict=True))
    return [_read(atom, values) for atom in jaxpr.outvars]


def _read(atom: Any, values: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]


def _evaluate_one(equation: JaxprEqn, values: dict[Any, Any]) -> list[Any]:
    variables = list(dict.fromkeys(atom for atom in equation.invars if isinstance(atom, Var)))
    debug_info = DebugInfo("aspen_call", equation.primitive.name, None, None)
    jaxpr = Jaxpr((), variables, list(equation.outvars), [equation], equation.effects, debug_info)
    return core.eval_jaxpr(jaxpr, (), *(values[variable] for variable in variables))
