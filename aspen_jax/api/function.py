"""A decorated function: what the user holds in hand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax

from aspen_jax.api import arguments, compiled, nnx_state, objects, results, statics, tracing
from aspen_jax.api.bound import BoundAspenFunction
from aspen_jax.api.by_name import ByName
from aspen_jax.api.jitted import Jitted
from aspen_jax.api.known_objects import KnownObjects
from aspen_jax.api.staged import staged
from aspen_jax.api.weights import Layouts, restore
from aspen_jax.errors import UnsupportedError
from aspen_jax.lowering.compile import keeping_values
from aspen_jax.primitive import primitive
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets import registry

if TYPE_CHECKING:
    from aspen_jax.api.stream import Stream
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.report.explain import Explanation
    from aspen_jax.targets.target import Tuned

statics.HOLDERS[BoundAspenFunction] = statics.Holder(
    lambda method: (method.__func__, method.__self__), lambda function, instance: function.__get__(instance)
)

P = ParamSpec("P")
R = TypeVar("R")


class AspenFunction(ByName, Generic[P, R]):
    """A function that runs as a graph of tiles; made by `aspen`.

    Call it as the function that it wraps. `__wrapped__` is that function.
    """

    __wrapped__: Callable[P, R]
    __name__: str
    __qualname__: str

    def __init__(self, fun: Callable[P, R], *, weights: tuple[int | str, ...], choices: Choices):
        functools.update_wrapper(self, fun, updated=())
        if inspect.isfunction(fun):  # a callable object's attributes are its own
            vars(self).update((name, value) for name, value in vars(fun).items() if not hasattr(self, name))
        named = fun.func if isinstance(fun, functools.partial) else fun
        self.__name__ = getattr(fun, "__name__", getattr(named, "__name__", type(named).__name__))
        self.__qualname__ = getattr(named, "__qualname__", type(named).__qualname__)
        # Of methods that are read from objects, at each call.
        self._named = {name: getattr(fun, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(fun, name)}
        self._weights = weights
        self._choices = choices._replace(function=_described(fun, self.__name__))
        self._jitted = Jitted(fun, self.__name__, self._choices)
        self._layouts = Layouts(fun, self.__name__, weights)
        self._holds_objects: dict[Any, bool] = {}
        self._known = KnownObjects()
        self._is_method = False

    def __set_name__(self, owner: type, name: str) -> None:
        self._is_method = True  # so that the object may also be given to it as the first argument

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if primitive.flag("jax_disable_jit"):
            undecorated: Callable[..., Any] = self.__wrapped__
            return undecorated(*restore(args), **restore(kwargs))
        if self._is_method and args:
            args = (self._object(args[0]), *args[1:])  # type: ignore[assignment]
        try:
            return nnx_state.call(self._call, args, kwargs, self._holds_objects)
        except (RuntimeError, ValueError) as error:
            clearer = arguments.explained(error, self.__wrapped__, self.__name__, args, kwargs)
            if clearer is None:
                raise
            raise clearer from error

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if tracing.is_deep(self._choices):
            do = tracing.in_place(self.__wrapped__, self.__name__)
            return results.whole(self._jitted.on_arguments(do, args, kwargs, scalars_static=True))
        if self._weights and self._arranges_weights():
            args, kwargs = self._layouts.prepared(self._jitted.jaxpr, *objects.opened((args, kwargs)))
        return results.whole(self._jitted(args, kwargs))

    def _object(self, instance: Any) -> Any:
        """The object of a method as an argument, as it is now."""
        return instance if type(instance) is objects.Opened else objects.opened_self(instance, self.__name__, self._known)

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with all objects taken apart."""
        if self._is_method and args:
            args = (self._object(args[0]), *args[1:])
        return objects.opened((args, kwargs))

    def _without_object(self, method: Callable[..., Any]) -> AspenFunction[..., Any]:
        """The function of the arguments behind the object of a method, which is constant in it."""
        name = next(iter(inspect.signature(self.__wrapped__).parameters), None)
        marks = (mark if isinstance(mark, str) or mark < 0 else mark - 1 for mark in self._weights if mark not in (0, name))
        return AspenFunction(method, weights=tuple(marks), choices=self._choices)

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """The weights, stored once in the order in which the function's products and convolutions read them.

        Calls outside `jax.jit` do this by themselves for arguments marked as weights. Inside `jax.jit` weights are tracers, which
        cannot be stored. Pass what this method returns instead. It holds each array once, so you may drop the weights themselves.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array that is no weight. The weights alone
                will do once the function was called with weights of this structure and these shapes.
            **kwargs: likewise.

        Returns:
            The argument marked as weights, or a tuple where several are, with a `PreparedArray` for each array that gains.

        Raises:
            InputError: no argument is marked as weights, or the weights alone do not tell enough.
        """
        return objects.closed(self._layouts.prepare(self._jitted.jaxpr, *self._seen(args, kwargs)))

    def _arranges_weights(self) -> bool:
        """Whether weights are worth storing in another order where calls run."""
        target = registry.here(self._choices.device)
        return target is not None and target.arranges_weights

    def graph(self, *args: Any, **kwargs: Any) -> TileGraph:
        """The graph of tiles for arguments of these shapes.

        Its inputs are the arrays of the arguments, in order, also those that the function does not read. Its results are all
        arrays that the function returns, so `graph.run(*args)` gives the leaves of `f(*args)`. Static arguments are left out. All
        of the function is tiled, also what XLA would do as fast. Inputs are named after arguments, as in "params.dense.kernel",
        results as in "result.logits".

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.

        Raises:
            UnsupportedError: the function is not one graph. XLA runs parts of it, or it returns an argument or a constant of a
                kind that tiles cannot hold.

        Example:
            >>> graph = f.graph(x)
            >>> graph.verify()
            >>> outputs = graph.run(x)
            >>> graph.save("f.aspen")
            >>> graph.input_names, graph.result_names
            (('x',), ('result',))
        """
        return compiled.graph_of(self, args, kwargs)

    def graph_without_reuse(self, *args: Any, **kwargs: Any) -> TileGraph:
        """The graph of `graph`, in which each value has memory of its own.

        It takes more memory, and is slower where a cache cannot hold that. But no tile waits until others have read what it
        writes over. So tiles that read parts of the inputs run as soon as those are there (`Arrivals`).

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.

        Raises:
            UnsupportedError: as `graph` raises it.
        """
        return keeping_values(self.graph(*args, **kwargs), compiled.options(self, chooses=False))

    def graph_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What the graph of these arguments takes: their arrays and numbers, in order, without what is static.

        Call it after `graph`, which finds out whether the function needs its Python numbers as they are.

        Args:
            *args: as the function takes them.
            **kwargs: likewise.

        Example:
            >>> results = f.graph(x, negate=True).run(f.graph_inputs(x, negate=True))
        """

        def kept(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
            return self._jitted.on_arguments(lambda _, traced: traced, args, kwargs)

        return nnx_state.call(kept, *self._seen(args, kwargs), self._holds_objects)

    def stream(self, *args: Any, **kwargs: Any) -> Stream:
        """The function for arguments that change little from call to call, such as the images of a video.

        A call computes anew only the tiles that a change reaches. Every bit of the result is what computing all of it gives. All
        of the function is tiled, and all its values are kept from call to call.

        Args:
            *args: the first arguments, as the function takes them. All of it is computed for them.
            **kwargs: likewise.

        Returns:
            A `Stream`, which is called as the function. Its attribute `last` says which tiles the last call ran.

        Raises:
            UnsupportedError: the function is not one graph; see `graph`.
            InputError: it is for GPUs, or an argument holds an object of flax.nnx.

        Example:
            >>> detect = f.stream(first_image)
            >>> boxes = detect(next_image)  # as f(next_image)
            >>> print(detect.last)  # how many tiles of each op ran
        """
        from aspen_jax.api.stream import Stream

        return Stream.of(self, args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What becomes of the function for arguments of these shapes: ops, tiles, what stays with XLA and why.

        The result prints as a table. With device="cuda" it is about the GPU, otherwise about the CPU. Where there is a GPU, one
        sentence says who runs the function there and why. Nothing is compiled by XLA.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.
        """
        return compiled.explanation_of(self, args, kwargs)

    def tune(self, *args: Any, **kwargs: Any) -> Tuned:
        """Search, by timing, for the tiles and algorithms that are fastest on this machine for arguments of these shapes.

        On a CPU, what is found is kept on disk for this processor, this build and this number of workers. Every function with the
        same layers uses it when it is traced from then on. Both sides are timed of parts at which tiles and XLA are predicted to
        be about as fast; this is kept too. ASPEN_CACHE_DIR names the folder; the default is the user's cache folder. A `jax.jit`
        around this function that was compiled before keeps what it has. Leave the machine idle meanwhile.

        With device="cuda", and with "auto" where JAX's default device is a GPU, the kernels of products are timed in tens of
        ways instead, and then the function by XLA and by each executor. The times are kept for this kind of GPU, and
        device="auto" then takes the fastest. Products that were never timed take the choice of those like them.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.

        Returns:
            What was found; it prints as a sentence.

        Raises:
            UnsupportedError: nothing of the function is tiled.
            AspenError: it is for a GPU and there is none, or CUDA code cannot be compiled here.
        """
        target = registry.here(self._choices.device)
        if target is None:
            raise UnsupportedError(f"nothing is tuned on {jax.default_backend()!r}; decorate {self.__name__} with device='cpu'")
        found = target.tune(compiled.calls_of(self, args, kwargs)[1], self._choices, self.__name__)
        self._jitted.forget()
        return found

    def cost_analysis(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """What all of the function costs, counted as XLA counts the undecorated one.

        XLA cannot see inside a custom call. Like XLA this counts a loop as one iteration, a choice as its dearest branch and a
        multiply-add as two. What is multiplied with padding does not count.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.

        Returns:
            "flops"; "transcendentals", the elements of exp, log, tanh and the like; "bytes accessed", by tiles and by XLA.
        """
        return self.explain(*args, **kwargs).cost()

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The function traced for arguments of these shapes, as `jax.jit(self).trace` gives it.

        Call what you compile from it with arrays and numbers. Leave out static arguments, as with `jax.jit`. Static leaves of
        other arguments are None.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.
        """
        return staged(self, "trace", args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The function lowered for arguments of these shapes, as by `jax.jit`; `lower(...).compile()` compiles it.

        Args:
            *args: as `trace` takes them.
            **kwargs: likewise.
        """
        return staged(self, "lower", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """A `jax.ShapeDtypeStruct` for each array of the result, as `jax.jit(self).eval_shape` gives it.

        Args:
            *args: as `trace` takes them.
            **kwargs: likewise.
        """
        return staged(self, "eval_shape", args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or not hasattr(self.__wrapped__, "__get__"):
            return self
        return BoundAspenFunction(self, instance)

    def _made_of(self) -> tuple[Any, ...]:
        return self.__wrapped__, self._weights, self._choices

    def __setstate__(self, state: tuple[Callable[P, R], tuple[int | str, ...], Choices]) -> None:
        fun, weights, choices = state
        self.__init__(fun, weights=weights, choices=choices)

    def __repr__(self) -> str:
        return f"<aspen of {self.__wrapped__!r}>"


def _described(fun: Callable[..., Any], name: str) -> str:
    """The function's name and line."""
    code = getattr(inspect.unwrap(fun.func if isinstance(fun, functools.partial) else fun), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
