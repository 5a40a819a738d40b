"""The function as `jax.jit` sees it: a function of what is static and of the traced leaves."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from aspen_jax.api import arguments, nnx_state, objects, results
from aspen_jax.api.weights import restore
from aspen_jax.primitive import experimental, primitive
from aspen_jax.primitive.choices import Choices

# Decorated functions that call each other to this depth have traces of their own. Each takes tens of Python's frames, of which
# there are a thousand. Functions further inside become part of the trace around them.
_DEEPEST = 4


class _Enclosing(threading.local):
    """Which decorated functions this thread is tracing, from the outermost to the innermost."""

    def __init__(self) -> None:
        self.choices: tuple[Choices, ...] = ()


_enclosing = _Enclosing()


def traceable(held: Callable[[], Any], name: str, choices: Choices) -> Callable[..., Any]:
    """What `held` gives as a function of a `Structure` and the traced leaves."""

    def on_leaves(structure: arguments.Structure, leaves: list[Any]) -> Any:
        fun = held()

        @functools.wraps(fun, updated=())
        def on_traced(*args: Any, **kwargs: Any) -> Any:
            with _inside(choices):
                return _result(fun, name, structure, jax.tree.leaves((args, kwargs)))

        experimental.register_loaded()
        args, kwargs = structure.traced(leaves)
        return primitive.call(on_traced, args, kwargs, choices=choices)

    on_leaves.__name__ = on_leaves.__qualname__ = name
    return on_leaves


def is_deep(choices: Choices) -> bool:
    """Whether a call with these choices becomes part of the trace around it."""
    around = _enclosing.choices
    return len(around) >= _DEEPEST and around[-1]._replace(function="") == choices._replace(function="")


def in_place(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function that `traceable` gives, as part of the trace around it."""

    def on_leaves(structure: arguments.Structure, leaves: list[Any]) -> Any:
        result = _result(fun, name, structure, [leaf if isinstance(leaf, Tracer) else jnp.asarray(leaf) for leaf in leaves])
        return jax.tree.map(lambda leaf: leaf if isinstance(leaf, Tracer) else jnp.asarray(leaf), result)

    return on_leaves


def _result(fun: Callable[..., Any], name: str, structure: arguments.Structure, leaves: list[Any]) -> Any:
    args, kwargs = restore(structure.whole(leaves))
    result = nnx_state.traced(objects.on_objects(fun, name), args, kwargs)
    return results.parted(result, (value for _, value in structure.static), name)


@contextlib.contextmanager
def _inside(choices: Choices) -> Iterator[None]:
    before = _enclosing.choices
    _enclosing.choices = (*before, choices)
    try:
        yield
    finally:
        _enclosing.choices = before
