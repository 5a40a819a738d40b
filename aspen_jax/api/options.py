"""Options of the decorator, checked when a function is decorated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from aspen_jax.errors import InputError


def refuse_jit_options(options: dict[str, Any]) -> None:
    """Says of the options of `jax.jit` where they belong, and refuses any other as a function would."""
    for name, value in options.items():
        if name not in inspect.signature(jax.jit).parameters:
            raise TypeError(f"aspen() got an unexpected keyword argument {name!r}")
        around = f"give it to jax.jit around the decorated function: jax.jit(aspen(f), {name}={value!r})"
        if name in ("static_argnums", "static_argnames"):
            around = f"leave it out, as hashable arguments that are no arrays are static by themselves, or {around}"
        raise InputError(f"{name} is no option of aspen; {around}")


def checked_weights(fun: Callable[..., Any], weights: Any) -> tuple[int | str, ...]:
    """The weights option as a tuple, checked against the function's parameters."""
    marks = (weights,) if isinstance(weights, int | str) else weights
    if not isinstance(marks, Sequence) or not all(isinstance(mark, int | str) and not isinstance(mark, bool) for mark in marks):
        raise InputError(f"weights={weights!r} is not a position, a name or a sequence of those; pass 0 or 'params', say")
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):  # some callables tell nothing about themselves
        return tuple(marks)
    kinds = {parameter.kind for parameter in parameters}
    positional = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    named = [item.name for item in parameters if item.kind in (item.KEYWORD_ONLY, item.POSITIONAL_OR_KEYWORD)]
    for mark in marks:
        if isinstance(mark, str):
            fits = mark in named or inspect.Parameter.VAR_KEYWORD in kinds
        else:
            fits = -len(positional) <= mark < len(positional) or (mark >= 0 and inspect.Parameter.VAR_POSITIONAL in kinds)
        if not fits:
            raise InputError(f"weights={mark!r} is no argument of {fun!r}, which takes {', '.join(p.name for p in parameters)}")
    return tuple(marks)
