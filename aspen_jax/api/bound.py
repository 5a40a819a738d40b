"""A decorated function that was read from an object: a method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from aspen_jax.api.objects import Opened

if TYPE_CHECKING:
    from aspen_jax.api.function import AspenFunction
    from aspen_jax.api.stream import Stream
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.report.explain import Explanation
    from aspen_jax.targets.target import Tuned


class BoundAspenFunction:
    """An `AspenFunction` that was read from an object: a method. It holds the object.

    Its names do what those of `AspenFunction` do. The object is an argument of calls: each one sees what it holds now. Graphs and
    what is traced or lowered are of the other arguments. What the object holds when they are made is constant in them.
    """

    __wrapped__: Any
    __name__: str

    def __init__(self, function: AspenFunction[..., Any], instance: Any):
        vars(self).update(function._named)
        self.__wrapped__ = function.__wrapped__.__get__(instance)
        self.__self__ = instance
        self.__func__ = function

    def _object(self) -> Any:
        """The object as an argument, as it is now."""
        return self.__func__._object(self.__self__)

    def _of_constants(self) -> AspenFunction[..., Any]:
        """The function of the other arguments. What the object holds is constant in it, as in `jax.jit` of the method."""
        return self.__func__._without_object(self.__wrapped__)

    def _of_pytree(self) -> tuple[AspenFunction[..., Any], tuple[Any, ...]]:
        """The function, and the object as its first argument if that is a pytree; otherwise the function without it."""
        instance = self._object()
        return (self._of_constants(), ()) if type(instance) is Opened else (self.__func__, (instance,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self._object(), *args, **kwargs)

    def graph(self, *args: Any, **kwargs: Any) -> TileGraph:
        """Does what `AspenFunction.graph`; arrays of an object that is no pytree are constants."""
        function, first = self._of_pytree()
        return function.graph(*first, *args, **kwargs)

    def graph_without_reuse(self, *args: Any, **kwargs: Any) -> TileGraph:
        """Does what `AspenFunction.graph_without_reuse`; arrays of an object that is no pytree are constants."""
        function, first = self._of_pytree()
        return function.graph_without_reuse(*first, *args, **kwargs)

    def graph_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Does what `AspenFunction.graph_inputs`; arrays of an object that is no pytree are left out."""
        function, first = self._of_pytree()
        return function.graph_inputs(*first, *args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Stream:
        """Does what `AspenFunction.stream`.

        Arrays of a pytree are constants. A stream of another object sees what the object holds at each call.
        """
        if type(self._object()) is Opened:
            from aspen_jax.api.stream import Stream

            return Stream.of(self.__func__, args, kwargs, lambda: (self._object(),))
        return self._of_constants().stream(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Does what `AspenFunction.explain`."""
        return self.__func__.explain(self._object(), *args, **kwargs)

    def tune(self, *args: Any, **kwargs: Any) -> Tuned:
        """Does what `AspenFunction.tune`."""
        return self.__func__.tune(self._object(), *args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Does what `AspenFunction.prepare`."""
        return self.__func__.prepare(self._object(), *args, **kwargs)

    def cost_analysis(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Does what `AspenFunction.cost_analysis`."""
        return self.__func__.cost_analysis(self._object(), *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Does what `AspenFunction.trace`; the object is part of what is traced."""
        return self._of_constants().trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Does what `AspenFunction.lower`; the object is part of what is lowered."""
        return self._of_constants().lower(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Does what `AspenFunction.eval_shape`."""
        return self._of_constants().eval_shape(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # As Python's own methods do: what was set on the function can be read from the method.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["__func__"], name)

    def __reduce__(self) -> tuple[Any, ...]:
        if getattr(type(self.__self__), self.__name__, None) is self.__func__:
            return getattr, (self.__self__, self.__name__)  # as methods are pickled and copied
        return self.__func__.__get__, (self.__self__,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundAspenFunction):
            return NotImplemented
        return self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((self.__func__, id(self.__self__)))

    def __repr__(self) -> str:
        return f"<aspen of {self.__wrapped__!r}>"
