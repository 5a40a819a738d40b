"""The decorator `aspen`: what the user holds in hand."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import jax
from jax.extend import source_info_util

from aspen_jax.api import arguments, bound, nnx_state, objects, results, skeletons, statics, tracing
from aspen_jax.api.bound import BoundAspenFunction
from aspen_jax.api.known_objects import KnownObjects
from aspen_jax.api.options import checked_weights, refuse_jit_options
from aspen_jax.api.weights import Layouts, restore
from aspen_jax.errors import InputError, UnsupportedError
from aspen_jax.ir.leaf_names import leaf_names
from aspen_jax.lowering import rules
from aspen_jax.lowering.compile import Compiled, Options, compile_jaxpr, keeping_values, whole_graph
from aspen_jax.primitive import primitive
from aspen_jax.primitive.choices import Choices
from aspen_jax.runtime import run_key
from aspen_jax.targets import registry

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

    from aspen_jax.api.stream import Stream
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.report.explain import Explanation
    from aspen_jax.targets.target import Tuned

rules.register()
statics.HOLDERS[BoundAspenFunction] = statics.Holder(
    lambda method: (method.__func__, method.__self__), lambda function, instance: function.__get__(instance)
)

# What JAX tells of where an equation comes from (saved residuals, failed checks, profiles) is the caller's line, not one in here.
for _file in (__file__, *(str(room.__file__) for room in (arguments, bound, nnx_state, objects, skeletons, tracing, primitive))):
    source_info_util.register_exclusion(_file)

P = ParamSpec("P")
R = TypeVar("R")


@overload
def aspen(
    fun: Callable[P, R],
    *,
    weights: int | str | Sequence[int | str] = ...,
    device: str = ...,
    strict: bool = ...,
    priority: int = ...,
    deadline: float | None = ...,
) -> AspenFunction[P, R]: ...


@overload
def aspen(
    *,
    weights: int | str | Sequence[int | str] = ...,
    device: str = ...,
    strict: bool = ...,
    priority: int = ...,
    deadline: float | None = ...,
) -> Callable[[Callable[P, R]], AspenFunction[P, R]]: ...


def aspen(
    fun: Callable[..., Any] | None = None,
    *,
    weights: int | str | Sequence[int | str] = (),
    device: str = "auto",
    strict: bool = False,
    priority: int = 0,
    deadline: float | None = None,
    **options: Any,
) -> Any:
    """Makes a JAX function run as a graph of tiles, in one custom call where all of it can be tiled.

    Call, jit, vmap and differentiate the result as you would `fun`. It returns the same pytree, shapes, dtypes and weak types.
    What cannot be tiled stays with XLA. So does what XLA is predicted to do as fast. Outside `jax.jit` a call compiles once for
    each structure, shape and dtype of its arguments, as `jax.jit` would.

    Arguments are traced or static:

    - Arrays and Python numbers are traced.
    - Static are bool, str, None, functions, classes, enums, and what defines a hash of its own. A new value means a new trace.
    - Partials and bound methods are what they hold. An object that hashes by identity is refused: a change in it would be missed.
    - The object of a decorated method is an argument. Arrays in it are traced at any depth. Other attributes are compared.
    - Some functions need a Python number as it is, as in `range(n)`. They get it once tracing with an abstract one has failed.
    - What the function changes in modules, optimizers and random streams of flax nnx is changed in yours, as by `nnx.jit`.
    - Globals, and what a function or a callable object given to `aspen` holds, are read when it is traced, as with `jax.jit`.
    - Leaves of the result that are no arrays, such as functions and strings, come back as they were.

    Args:
        fun: function, method, callable object or `functools.partial`; takes pytrees. None gives a decorator.
        weights: which arguments are a model's parameters, by position or name. These arrays seldom change. Calls outside
            `jax.jit` store them once in the order in which kernels read them, as long as the arrays live. See
            `AspenFunction.prepare`.
        device: where the function is tiled. "cpu": on CPUs. "cuda" or "gpu": on GPUs; a call for the CPU is an error, and
            CuPy must be installed where the function is traced. "auto": on CPUs, and on a GPU where `AspenFunction.tune` timed
            the function there and found tiles faster (docs/explanation/gpu.md). In all other places XLA runs it as if it were not
            decorated.
            ASPEN_CUDA_EXECUTOR overrides "auto" and "cuda" on GPUs (docs/how-to/gpu.md).
        strict: raise `UnsupportedError` where something cannot be tiled, instead of leaving it to XLA. All of the function is
            then tiled, also what XLA would do as fast.
        priority: of several calls that run on the CPU at once, those with the larger number go first. Calls of equal priority
            go in the order of their arrival. One unit is worth a second of waiting, so nobody waits without end
            (docs/explanation/scheduling.md).
        deadline: seconds within which a call should be done. Of several calls, the one that is due first goes first. Without a
            deadline a call is due after a second.
        **options: none. The error for an option of `jax.jit`, such as `donate_argnums`, says where it belongs.

    Returns:
        An `AspenFunction`. It warns once, by the logger "aspen_jax", where no kernel exists for most of its flops
            (docs/how-to/fallback.md).

    Raises:
        InputError: an option has another value than those above, or is one of `jax.jit`. In a call: an argument is neither an
            array nor static, or was deleted, or the function changes an object that it closes over or is a method of, or
            returns an object that is neither.
        TypeError: an option is neither one of those above nor of `jax.jit`.

    Example:
        >>> @aspen(weights="params")
        ... def predict(params, x):
        ...     return jax.nn.relu(x @ params["w"] + params["b"])
        >>> y = predict(params, x)
        >>> gradient = jax.grad(lambda params: predict(params, x).sum())(params)
    """
    refuse_jit_options(options)
    if fun is None:
        return functools.partial(aspen, weights=weights, device=device, strict=strict, priority=priority, deadline=deadline)
    if isinstance(fun, staticmethod | classmethod):
        raise InputError(f"aspen cannot decorate a {type(fun).__name__}; put @aspen below @{type(fun).__name__}")
    if not callable(fun):
        raise InputError(f"aspen decorates callables, not {fun!r}; options are keywords, as in @aspen(strict=True)")
    device = registry.checked(device)
    if not isinstance(strict, bool):
        raise InputError(f"strict={strict!r} is not a bool; pass True or False")
    key = run_key(priority, deadline)
    choices = Choices(strict=strict, device=device, run_key=key)
    marks = checked_weights(fun, weights)
    method, instance = (fun.__func__, fun.__self__) if inspect.ismethod(fun) else (type(fun).__call__, fun)
    if nnx_state.is_object(instance):  # it may change, so it is an argument
        marks = tuple(mark + 1 if isinstance(mark, int) and mark >= 0 else mark for mark in marks)
        return AspenFunction(method, weights=marks, choices=choices).__get__(instance)
    return AspenFunction(fun, weights=marks, choices=choices)


class AspenFunction(Generic[P, R]):
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
        self._jitted = self._shared_jit()
        self._layouts = Layouts(fun, self.__name__, weights)
        self._scalars_static: set[Any] = set()
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
            return results.whole(self._on_arguments(do, args, kwargs, scalars_static=True))
        if self._weights and self._arranges_weights():
            args, kwargs = self._layouts.prepared(self._jaxpr, *objects.opened((args, kwargs)))
        return results.whole(self._on_arguments(self._jitted, args, kwargs))

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
        return objects.closed(self._layouts.prepare(self._jaxpr, *self._seen(args, kwargs)))

    def _arranges_weights(self) -> bool:
        """Whether weights are worth storing in another order where calls run."""
        target = registry.here(self._choices.device)
        return target is not None and target.arranges_weights

    def _shared_jit(self) -> Any:
        """The function under `jax.jit`, as it is for whoever else decorated it so.

        `aspen(f)` in a function that is called often compiles once, as `jax.jit(f)` there does.
        """
        if not inspect.isfunction(self.__wrapped__):
            return self._new_jit()
        known = _jitted_functions.setdefault(self.__wrapped__, {})
        key = self.__name__, self._choices
        if key not in known:
            known[key] = self._new_jit()
        return known[key]

    def _forget_traces(self) -> None:
        """What is traced from now on, also by whoever decorates the function anew, is compiled with what was tuned."""
        if inspect.isfunction(self.__wrapped__):
            _jitted_functions.pop(self.__wrapped__, None)
        self._jitted = self._shared_jit()

    def _new_jit(self) -> Any:
        """The function under `jax.jit`, with nothing compiled yet."""
        fun = self.__wrapped__
        held = weakref.ref(fun) if inspect.isfunction(fun) else lambda: fun
        return jax.jit(tracing.traceable(held, self.__name__, self._choices), static_argnums=0)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> jax.stages.Traced:
        return self._on_arguments(self._jitted.trace, args, kwargs, shapes_traced=True)

    def _jaxpr(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[int]]:
        """The jaxpr of a call and which leaf of (args, kwargs) each of its inputs is."""
        jaxpr = self._traced(args, kwargs).jaxpr.jaxpr
        leaves, tree = jax.tree.flatten((args, kwargs))
        structure, _ = arguments.split(leaves, tree, scalars_static=tree in self._scalars_static, shapes_traced=True)
        static = {index for index, _ in structure.static}
        return jaxpr, [index for index in range(len(leaves)) if index not in static]

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
        explanation = self._explain(args, kwargs, chooses=False)
        if len(explanation.parts) != 1 or explanation.fallbacks:
            left = ", ".join(sorted({fallback.primitive for fallback in explanation.fallbacks})) or "all of it"
            raise UnsupportedError(
                f"{self.__name__} as a whole is not one graph of tiles; it has {len(explanation.parts)}; left to XLA: {left}; "
                "explain() with the same arguments says where and why"
            )
        jaxpr, (call,) = self._calls(args, kwargs)
        graph = whole_graph(jaxpr, compile_jaxpr(call, self._options(chooses=False)))
        input_names, result_names = self._names(args, kwargs)
        return dataclasses.replace(graph, input_names=input_names, result_names=result_names)

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
        return keeping_values(self.graph(*args, **kwargs), self._options(chooses=False))

    def _names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the graph's inputs and results; none where two of them would have the same."""

        def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], list[str]]:
            names = arguments.names(self.__wrapped__, args, kwargs)

            def kept(structure: arguments.Structure, _: list[Any]) -> list[str]:
                static = {index for index, _ in structure.static}
                return [name for index, name in enumerate(names) if index not in static]

            inputs = self._on_arguments(kept, args, kwargs, shapes_traced=True)
            return inputs, leaf_names("result", results.whole(self._traced(args, kwargs).out_info, arrays_only=True))

        found = nnx_state.call(named, *self._seen(args, kwargs), self._holds_objects)
        of_inputs, of_results = (tuple(names) if len(set(names)) == len(names) else () for names in found)
        return of_inputs, of_results

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
            return self._on_arguments(lambda _, traced: traced, args, kwargs)

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
        return self._stream(tuple, args, kwargs)

    def _stream(self, leading: Callable[[], tuple[Any, ...]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stream:
        """As `stream`, behind arguments that are asked for at each call."""
        from aspen_jax.api.flat import FlatCall
        from aspen_jax.api.stream import Stream

        device = self._choices.device
        if not registry.of_function(device).runs_graphs:
            raise InputError(f"{self.__name__} is for {device!r} and streams run on the CPU; decorate it with device='cpu'")
        first = leading()
        stream = Stream(FlatCall.of(self, (*first, *args), kwargs), self.graph_without_reuse(*first, *args, **kwargs), leading)
        stream(*args, **kwargs)
        return stream

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What becomes of the function for arguments of these shapes: ops, tiles, what stays with XLA and why.

        The result prints as a table. With device="cuda" it is about the GPU, otherwise about the CPU. Where there is a GPU, one
        sentence says who runs the function there and why. Nothing is compiled by XLA.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.
        """
        return self._explain(args, kwargs)

    def _explain(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, chooses: bool = True) -> Explanation:
        """What becomes of the function, with or without leaving to XLA what that does as fast."""
        from aspen_jax.report.explain import Explanation

        jaxpr, compiled = self._compiled(args, kwargs, chooses=chooses)
        explanation = Explanation.of(self.__name__, jaxpr.jaxpr, compiled, primitive.why_inlined(jaxpr))
        return dataclasses.replace(explanation, on_gpu=self._on_gpu([call for call, _ in compiled]) if chooses else ())

    def _on_gpu(self, calls: Sequence[ClosedJaxpr]) -> tuple[str, ...]:
        """Who runs calls on devices that this process has, and why."""
        targets = registry.all_named(self._choices.device)
        said = (target.who_runs(call, self._choices) for target in targets for call in calls)
        return tuple(dict.fromkeys(filter(None, said)))

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
        found = target.tune(self._calls(args, kwargs)[1], self._choices, self.__name__)
        self._forget_traces()
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
        """As `jax.jit(self).trace`: the function traced for arguments of these shapes.

        Call what you compile from it with arrays and numbers. Leave out static arguments, as with `jax.jit`. Static leaves of
        other arguments are None.

        Args:
            *args: as the function takes them; `jax.ShapeDtypeStruct` may stand for an array.
            **kwargs: likewise.
        """
        return self._staged("trace", args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As `jax.jit(self).lower`: the function lowered for arguments of these shapes; `lower(...).compile()` compiles it.

        Args:
            *args: as `trace` takes them.
            **kwargs: likewise.
        """
        return self._staged("lower", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(self).eval_shape`: a `jax.ShapeDtypeStruct` for each array of the result.

        Args:
            *args: as `trace` takes them.
            **kwargs: likewise.
        """
        return self._staged("eval_shape", args, kwargs)

    def _staged(self, stage: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What this method of the function under `jax.jit` gives, its static arguments left out."""

        def do(structure: arguments.Structure, traced: list[Any]) -> Any:
            def on_kept(*kept: Any, **named: Any) -> R:
                args, kwargs = structure.whole(jax.tree.leaves((kept, named)))
                result = results.parted(self(*args, **kwargs), (), self.__name__)
                return results.whole(result, arrays_only=True)

            def is_kept(argument: Any, original: Any) -> bool:
                return bool(jax.tree.leaves(argument)) or not jax.tree.leaves(original)

            on_kept.__name__ = on_kept.__qualname__ = self.__name__
            of_args, of_kwargs = structure.traced(traced)
            kept = [item for item, original in zip(of_args, args, strict=True) if is_kept(item, original)]
            named = {name: item for name, item in of_kwargs.items() if is_kept(item, kwargs[name])}
            if len(kept) == len(args):
                vars(on_kept)["__wrapped__"] = self.__wrapped__  # its signature names the arguments
            return getattr(jax.jit(on_kept), stage)(*kept, **named)

        args, kwargs = self._seen(args, kwargs)
        return self._on_arguments(do, args, kwargs, shapes_traced=True)

    def _calls(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ClosedJaxpr, list[ClosedJaxpr]]:
        """The jaxpr of a call, and each function in it that is to be tiled."""
        jaxpr = nnx_state.call(self._traced, *self._seen(args, kwargs), self._holds_objects).jaxpr
        return jaxpr, [equation.params["call_jaxpr"] for equation in jaxpr.eqns if equation.primitive is primitive.aspen_call_p]

    def _compiled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, chooses: bool = True
    ) -> tuple[ClosedJaxpr, list[tuple[ClosedJaxpr, Compiled]]]:
        """The jaxpr of a call, each function in it that is to be tiled, and what becomes of that."""
        jaxpr, calls = self._calls(args, kwargs)
        return jaxpr, [(call, compile_jaxpr(call, self._options(chooses=chooses))) for call in calls]

    def _options(self, *, chooses: bool = True) -> Options:
        """How its calls are compiled, whatever of them is left to XLA; by `chooses`, also what XLA does as fast."""
        choices = self._choices._replace(strict=False)
        target = registry.of_function(choices.device).here()
        return Options(choices, target, chooses=chooses and not self._choices.strict)

    def _on_arguments(
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
            raise arguments.refuse(self.__wrapped__, self.__name__, args, kwargs, error.args[0]) from None
        args, kwargs = objects.opened((args, kwargs))
        return self._on_arguments(do, args, kwargs, shapes_traced=shapes_traced, scalars_static=scalars_static)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or not hasattr(self.__wrapped__, "__get__"):
            return self
        return BoundAspenFunction(self, instance)

    def __hash__(self) -> int:
        return object.__hash__(self)  # it never changes, so it may be a static argument

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        # As functions are: by reference where this can be imported by its name. What is in __main__ cloudpickle takes by value,
        # as another process has another one; its pickler is in C, so the frame that called this is cloudpickle's own.
        by_cloudpickle = "cloudpickle" in sys._getframe(1).f_globals.get("__name__", "")
        if self._is_importable() and not (by_cloudpickle and self.__module__ == "__main__"):
            return self.__qualname__
        # The function comes in the state, which may hold this object again: a local function that calls itself.
        return copyreg.__newobj__, (type(self),), (self.__wrapped__, self._weights, self._choices)  # type: ignore[attr-defined]

    def __setstate__(self, state: tuple[Callable[P, R], tuple[int | str, ...], Choices]) -> None:
        fun, weights, choices = state
        self.__init__(fun, weights=weights, choices=choices)

    def __copy__(self) -> AspenFunction[P, R]:
        return self

    def __deepcopy__(self, memo: Any) -> AspenFunction[P, R]:
        return self

    def _is_importable(self) -> bool:
        try:
            return operator.attrgetter(self.__qualname__)(sys.modules[self.__module__]) is self
        except (AttributeError, KeyError):
            return False

    def __repr__(self) -> str:
        return f"<aspen of {self.__wrapped__!r}>"


# Of each function its traces, which go when the function goes. So nothing in here holds the function.
_jitted_functions: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = weakref.WeakKeyDictionary()


def _described(fun: Callable[..., Any], name: str) -> str:
    """The function's name and line."""
    code = getattr(inspect.unwrap(fun.func if isinstance(fun, functools.partial) else fun), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
