"""The decorator `aspen`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from jax.extend import source_info_util

from aspen_jax.api import arguments, bound, compiled, function, jitted, nnx_state, objects, skeletons, staged, tracing
from aspen_jax.api.bound import BoundAspenFunction
from aspen_jax.api.flat import FlatCall
from aspen_jax.api.function import AspenFunction
from aspen_jax.api.options import checked_weights, refuse_jit_options
from aspen_jax.errors import InputError
from aspen_jax.lowering import rules
from aspen_jax.primitive import primitive
from aspen_jax.primitive.choices import Choices
from aspen_jax.runtime import run_key
from aspen_jax.targets import registry

rules.register()

# What JAX tells of where an equation comes from (saved residuals, failed checks, profiles) is the caller's line, not one in here.
for _room in (arguments, bound, compiled, function, jitted, nnx_state, objects, skeletons, staged, tracing, primitive):
    source_info_util.register_exclusion(str(_room.__file__))

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


def flat_call(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatCall:
    """Traces a call of a function, decorated or not; see `FlatCall.of`. The object of a method counts as constants."""
    function = fun if isinstance(fun, AspenFunction | BoundAspenFunction) else aspen(fun)
    return FlatCall.of(function._of_constants() if isinstance(function, BoundAspenFunction) else function, args, kwargs)


def decorated_as(
    call: FlatCall,
    fun: Callable[..., Any],
    name: str,
    *,
    takes_arguments: bool,
    kind: type[AspenFunction[..., Any]] = AspenFunction,
) -> AspenFunction[..., Any]:
    """`fun` decorated as the function of a call is, by `kind`; its weights are that one's where it takes the same arguments."""
    fun.__name__ = fun.__qualname__ = name
    if not takes_arguments:
        return AspenFunction(fun, weights=(), choices=call.function._choices)
    with contextlib.suppress(TypeError, ValueError):  # some callables tell nothing about themselves
        vars(fun)["__signature__"] = inspect.signature(call.function.__wrapped__)
    return kind(fun, weights=call.function._weights, choices=call.function._choices)
