"""What a function of float32 and narrower computes, in float64: the reference that says how far off a kernel is, not a peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_WIDE = np.dtype(np.float64)

# Calls whose body is all that they do, by the parameter that holds it.
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")

# XLA on CPU computes these by vectors, and so the largest of NaN and 1 may be 1 there, also in float64.
_LOSE_NAN = ("reduce_max", "reduce_min")

# What these do depends on how many bits a float has.
_OF_BITS = ("bitcast_convert_type", "nextafter")


def in_float64(function: Callable[..., jax.Array], *arrays: Any) -> np.ndarray:
    """The function's result where every float in it has 64 bits, on the CPU; float64 where the function gives floats.

    What the function itself rounds to 16 bits is rounded so too. Integers and bools are as they were.

    Args:
        function: of arrays, traceable by JAX.
        *arrays: its arguments.
    """
    (result,) = all_in_float64(function, *arrays)
    return result


def all_in_float64(function: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    """All results of a function where every float in it has 64 bits, as `in_float64` gives a single one."""
    return compiled_in_float64(function, *arrays)(*arrays)


def compiled_in_float64(function: Callable[..., Any], *arrays: Any, ulps: float | None = None) -> Callable[..., list[np.ndarray]]:
    """Compile a function with floats of 64 bits, once for all arrays of these shapes and dtypes.

    With `ulps`, each result is off by so many units in the last place, and rounded to its own dtype.
    """
    closed = jax.make_jaxpr(function)(*arrays)
    run = jax.jit(lambda *wide: _run(closed.jaxpr, closed.consts, wide, ulps))

    def call(*arrays: Any) -> list[np.ndarray]:
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
            return list(map(np.asarray, run(*map(_widened, arrays))))

    return call


def _is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.floating)


def _dtype(atom: Any) -> np.dtype:
    return atom.aval.dtype


def _widened(item: Any) -> Any:
    array = item if isinstance(item, jax.Array) else np.asarray(item)
    return array.astype(_WIDE) if _is_float(array.dtype) else array


def _run(jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], ulps: float | None = None) -> list[Any]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_widened, constants), strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return _widened(np.asarray(atom.val, _dtype(atom))) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        results = _equation(equation, [read(atom) for atom in equation.invars], ulps)
        if ulps is not None:
            results = [_rounded(item, _dtype(var), ulps) for item, var in zip(results, equation.outvars, strict=True)]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _rounded(item: Any, dtype: Any, ulps: float) -> Any:
    """A wide float as one of a dtype has it, off by some units in the last place; anything else as it is."""
    if not _is_float(dtype):
        return item
    info = jnp.finfo(dtype)
    return lax.reduce_precision(item * (1 + ulps * float(info.eps)), info.nexp, info.nmant)


def _equation(equation: Any, inputs: list[Any], ulps: float | None) -> list[Any]:
    primitive, params = equation.primitive, equation.params
    if primitive.name in _CALLS:
        body = next(params[name] for name in _BODIES if name in params)
        return _run(*((body.jaxpr, body.consts) if isinstance(body, ClosedJaxpr) else (body, ())), inputs, ulps)
    if primitive.name == "convert_element_type" and _is_float(params["new_dtype"]):
        wide = lax.convert_element_type(inputs[0], _WIDE)
        kept = jnp.finfo(params["new_dtype"])
        return [wide if kept.bits > 16 else lax.reduce_precision(wide, kept.nexp, kept.nmant)]
    if primitive.name in _OF_BITS:
        narrow = [
            lax.convert_element_type(item, dtype) if _is_float(dtype) else item
            for item, dtype in zip(inputs, map(_dtype, equation.invars), strict=True)
        ]
        return [_widened(primitive.bind(*narrow, **params))]
    if primitive.name in ("reduce_window_max", "reduce_window_min") and _is_float(inputs[0].dtype):
        is_nan = jnp.isnan(inputs[0]).astype(np.int32)
        has_nan = lax.reduce_window(is_nan, np.int32(0), lax.max, **params) > 0  # lost in the same way
        return [jnp.where(has_nan, jnp.nan, primitive.bind(*inputs, **params))]
    if primitive.name in _LOSE_NAN and _is_float(inputs[0].dtype):
        has_nan = jnp.isnan(inputs[0]).any(params["axes"])
        return [jnp.where(has_nan, jnp.nan, primitive.bind(*inputs, **params))]
    results = primitive.bind(*inputs, **{name: _widened_parameter(value, ulps) for name, value in params.items()})
    return list(results) if primitive.multiple_results else [results]


def _widened_parameter(value: Any, ulps: float | None) -> Any:
    """A parameter of a primitive for inputs of 64 bits: dtypes of floats, and functions, which are traced again for such."""
    if isinstance(value, np.dtype) and _is_float(value):
        return _WIDE
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        jaxpr, constants = (value.jaxpr, value.consts) if isinstance(value, ClosedJaxpr) else (value, ())
        narrow: list[Any] = [var.aval for var in jaxpr.invars]
        avals = [jax.ShapeDtypeStruct(item.shape, _WIDE if _is_float(item.dtype) else item.dtype) for item in narrow]
        traced = jax.make_jaxpr(lambda *inputs: _run(jaxpr, constants, inputs, ulps))(*avals)
        return traced if isinstance(value, ClosedJaxpr) else traced.jaxpr
    if isinstance(value, tuple):
        return tuple(_widened_parameter(item, ulps) for item in value) if type(value) is tuple else value
    return value
