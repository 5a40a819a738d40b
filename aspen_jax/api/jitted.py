"""A function under `jax.jit`, called by what is static of its arguments and by the traced leaves."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import jax

from aspen_jax.api import arguments, objects, tracing
from aspen_jax.primitive.choices import Choices

# Of each function its traces, which go when the function goes. So nothing in here holds the function.
_jitted_functions: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = weakref.WeakKeyDictionary()


class Jitted:
    """A function under `jax.jit`, as it is for whoever else decorated it so.

    `aspen(f)` in a function that is called often compiles once, as `jax.jit(f)` there does.

    Attributes:
        jit: the function of a `Structure` and the traced leaves, under `jax.jit`.
    """

    def __init__(self, fun: Callable[..., Any], name: str, choices: Choices):
        self._fun, self._name, self._choices = fun, name, choices
        self._scalars_static: set[Any] = set()
        self.jit = self._shared()

    def _shared(self) -> Any:
        if not inspect.isfunction(self._fun):
            return self._new()
        known = _jitted_functions.setdefault(self._fun, {})
        key = self._name, self._choices
        if key not in known:
            known[key] = self._new()
        return known[key]

    def _new(self) -> Any:
        """The function under `jax.jit`, with nothing compiled yet."""
        fun = self._fun
        held = weakref.ref(fun) if inspect.isfunction(fun) else lambda: fun
        return jax.jit(tracing.traceable(held, self._name, self._choices), static_argnums=0)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.on_arguments(self.jit, args, kwargs)

    def forget(self) -> None:
        """What is traced from now on, also by whoever decorates the function anew, is compiled with what was tuned."""
        if inspect.isfunction(self._fun):
            _jitted_functions.pop(self._fun, None)
        self.jit = self._shared()

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> jax.stages.Traced:
        """The call traced."""
        return self.on_arguments(self.jit.trace, args, kwargs, shapes_traced=True)

    def jaxpr(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[int]]:
        """The jaxpr of a call and which leaf of (args, kwargs) each of its inputs is."""
        jaxpr = self.trace(args, kwargs).jaxpr.jaxpr
        leaves, tree = jax.tree.flatten((args, kwargs))
        structure, _ = arguments.split(leaves, tree, scalars_static=tree in self._scalars_static, shapes_traced=True)
        static = {index for index, _ in structure.static}
        return jaxpr, [index for index in range(len(leaves)) if index not in static]

    def on_arguments(
        self,
        do: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        shapes_traced: bool = False,
        scalars_static: bool = False,
    ) -> Any:
        """What `do` gives for what is static of the arguments and for the traced leaves."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        static = scalars_static or tree in self._scalars_static
        try:
            structure, traced = arguments.split(leaves, tree, scalars_static=static, shapes_traced=shapes_traced)
            if not structure.has_scalars:
                return do(structure, traced)
            needs_numbers, result = arguments.tried(do, structure, traced)
            if needs_numbers:
                structure, traced = arguments.split(leaves, tree, scalars_static=True, shapes_traced=shapes_traced)
                result = do(structure, traced)
                self._scalars_static.add(tree)
            return result
        except arguments.HolderLeaf:
            pass
        except arguments.RefusedLeaf as error:
            raise arguments.refuse(self._fun, self._name, args, kwargs, error.args[0]) from None
        args, kwargs = objects.opened((args, kwargs))
        return self.on_arguments(do, args, kwargs, shapes_traced=shapes_traced, scalars_static=scalars_static)
