"""jax.numpy as users call it, and jax.nn: under @aspen each function gives what it gives alone, and most of it runs in tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

import aspen_jax
from aspen_jax.frontend import trace as frontend

_rng = np.random.default_rng(0)
X = _rng.standard_normal((3, 5), np.float32)
Y = _rng.standard_normal((3, 5), np.float32)
P = np.abs(X) + np.float32(0.1)
U = np.tanh(X)
V = _rng.standard_normal(7).astype(np.float32)
SQUARE = _rng.standard_normal((4, 4), np.float32) + 4 * np.eye(4, dtype=np.float32)
INTS = _rng.integers(-6, 7, (3, 5)).astype(np.int32)
J = _rng.integers(1, 7, (3, 5)).astype(np.int32)
B = X > 0
C = Y > 0
K = np.array([2, 0, 1], np.int32)

# What must run in tiles as a whole.
TILED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {}
# What may stay with XLA, in part or as a whole.
ANYWHERE: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {}


def _add(table: dict, arguments: tuple[np.ndarray, ...], *functions: Callable[..., Any] | str) -> None:
    """Enter functions, or names in jax.numpy with blanks between."""
    for function in functions:
        found = [getattr(jnp, name) for name in function.split()] if isinstance(function, str) else [function]
        for each in found:
            table[f"{len(table)} {getattr(each, '__name__', each)}"] = (each, arguments)


_add(
    TILED,
    (X,),
    """
    abs absolute ceil cos deg2rad degrees exp exp2 expm1 fabs floor isfinite isinf isnan isneginf isposinf
    logical_not negative positive rad2deg radians rint round sign signbit sin square tan tanh trunc sinc
    nan_to_num cbrt real conj
    """,
)
_add(TILED, (P,), "log", "log1p", "log2", "log10", "sqrt", "reciprocal")
_add(
    TILED,
    (X, Y),
    """
    add arctan2 divide equal fmax fmin fmod greater greater_equal heaviside hypot less less_equal logaddexp
    logical_and logical_or logical_xor maximum minimum mod multiply not_equal remainder subtract true_divide
    float_power floor_divide divmod copysign isclose array_equal allclose
    """,
)
_add(TILED, (P, Y), "power")
_add(
    TILED,
    (INTS, J),
    """
    add bitwise_and bitwise_or bitwise_xor equal floor_divide greater left_shift less logical_and maximum minimum
    mod multiply not_equal right_shift subtract divide fmod divmod
    """,
)
_add(
    TILED,
    (INTS,),
    """
    abs bitwise_not invert negative sign square sum max min prod mean cumsum argmax any all exp count_nonzero
    """,
)
_add(TILED, (B, C), "logical_and", "logical_or", "logical_xor", "bitwise_and", "equal", "not_equal", "add", "multiply", "maximum")
_add(TILED, (B,), "logical_not", "any", "all", "sum", "argmax", "cumsum", "mean", "count_nonzero")
_add(
    TILED,
    (X,),
    """
    all any amax amin argmax argmin average max mean min nanargmax nanmax nanmean nanmin nansum nanstd prod ptp
    std sum var cumsum cumprod count_nonzero nancumsum
    """,
)
_add(
    TILED,
    (X,),
    """
    atleast_3d copy diff ediff1d flip fliplr flipud ravel rot90 squeeze transpose zeros_like ones_like tril triu
    trace diagonal gradient matrix_transpose unstack
    """,
)
_add(TILED, (X, Y), "append", "vecdot", "vdot")
_add(TILED, (V, V), "outer", "dot", "inner", "kron", "meshgrid")
_add(TILED, (SQUARE, SQUARE), "matmul", "dot", "inner", "tensordot")
_add(
    TILED,
    (X,),
    lambda x: jnp.stack([x, x], 1),
    lambda x: jnp.concatenate([x, x], 1),
    lambda x: jnp.hstack([x, x]),
    lambda x: jnp.vstack([x, x]),
    lambda x: jnp.dstack([x, x]),
    lambda x: jnp.column_stack([x, x]),
    lambda x: jnp.split(x, [1, 3], 1),
    lambda x: jnp.array_split(x, 2, 1),
    lambda x: jnp.moveaxis(x, 0, 1),
    lambda x: jnp.swapaxes(x, 0, 1),
    lambda x: jnp.roll(x, 2, 1),
    lambda x: jnp.repeat(x, 3, axis=1),
    lambda x: jnp.tile(x, (2, 2)),
    lambda x: jnp.pad(x, 2),
    lambda x: jnp.pad(x, 1, mode="edge"),
    lambda x: jnp.pad(x, 1, mode="reflect"),
    lambda x: jnp.pad(x, 1, mode="wrap"),
    lambda x: jnp.broadcast_to(x, (2, 3, 5)),
    lambda x: jnp.reshape(x, (5, 3)),
    lambda x: jnp.clip(x, -1, 1),
    lambda x: jnp.where(x > 0, x, 0),
    lambda x: jnp.full_like(x, 2),
    lambda x: jnp.eye(5) + x[0],
    lambda x: jnp.arange(5) * x,
    lambda x: jnp.linspace(0, 1, 5) + x,
    lambda x: jnp.tri(3, 5) * x,
    lambda x: jnp.diag(x[0]),
    lambda x: jnp.einsum("ij,kj->ik", x, x),
    lambda x: x @ x.T,
    lambda x: jnp.linalg.norm(x, axis=1),
    lambda x: jnp.select([x > 1, x > 0], [x, -x]),
    lambda x: jnp.piecewise(x, [x > 0], [1.0]),
    lambda x: jnp.delete(x, 1, axis=1),
    lambda x: x.astype(jnp.int32),
    lambda x: x.astype(bool),
    lambda x: x[::2, ::-1],
    lambda x: x.at[1].set(0),
    lambda x: x.at[:, 1].add(1),
    lambda x: jnp.astype(x, jnp.int8),
    lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    lambda x: x.astype(jnp.float16) * 2,
    lambda x: lax.bitcast_convert_type(x, jnp.int32),
    lambda x: lax.reduce_precision(x, 8, 7),
    lambda x: lax.stop_gradient(x) * 2,
    lambda x: lax.optimization_barrier(x) + 1,
    lambda x: lax.expand_dims(x, (1,)),
    lambda x: lax.rev(x, (0, 1)),
    lambda x: lax.clamp(-1.0, x, 1.0),
    lambda x: lax.cummax(x, 1, reverse=True),
    lambda x: lax.is_finite(x),
)
_add(
    TILED,
    (X, K),
    lambda x, k: jnp.take(x, k, axis=1),
    lambda x, k: x[k],
    lambda x, k: x[:, k],
    lambda x, k: jnp.take_along_axis(x, k[:, None], 1),
    lambda x, k: x.at[k].set(1),
    lambda x, k: x.at[k].add(x),
    lambda x, k: jax.nn.one_hot(k, 4),
    lambda x, k: jnp.choose(k, list(x[:3, :3]), mode="clip"),
    lambda x, k: lax.dynamic_slice(x, (k[0], k[1]), (2, 2)),
    lambda x, k: lax.dynamic_update_slice(x, x[:2, :2], (k[0], k[2])),
    lambda x, k: lax.select_n(k % 3, x[0, :3], x[1, :3], x[2, :3]),
    lambda x, k: jnp.eye(3)[k] @ x,
    lambda x, k: lax.dynamic_index_in_dim(x, k[0], 0),
)
_add(
    TILED,
    (X,),
    jax.nn.relu,
    jax.nn.relu6,
    jax.nn.sigmoid,
    jax.nn.softplus,
    jax.nn.soft_sign,
    jax.nn.silu,
    jax.nn.log_sigmoid,
    jax.nn.leaky_relu,
    jax.nn.hard_sigmoid,
    jax.nn.hard_silu,
    jax.nn.hard_tanh,
    jax.nn.elu,
    jax.nn.celu,
    jax.nn.selu,
    jax.nn.gelu,
    jax.nn.softmax,
    jax.nn.log_softmax,
    jax.nn.standardize,
    jax.nn.logsumexp,
    jax.nn.mish,
    jax.nn.squareplus,
)

_add(
    ANYWHERE,
    (X,),
    """
    sort argsort median arcsinh arctan sinh cosh nanmedian unwrap frexp modf imag angle spacing i0 cov corrcoef
    """,
)
_add(ANYWHERE, (U,), "arccos", "arcsin", "arctanh")
_add(ANYWHERE, (P,), "arccosh")
_add(ANYWHERE, (X,), lambda x: jnp.diag(x[:, :3]), lambda x: jnp.insert(x, 1, 0, axis=1))
_add(ANYWHERE, (X, Y), "nextafter", lax.complex)
_add(ANYWHERE, (INTS, J), "gcd", "lcm", "power", lambda i, j: i @ j.T)
_add(ANYWHERE, (INTS,), "bitwise_count", lax.clz, lambda i: jnp.bincount(abs(i).ravel(), length=8))
_add(ANYWHERE, (V, V), "convolve", "correlate", "searchsorted", "polyval", lambda x, y: jnp.interp(x, jnp.sort(y), y))
_add(
    ANYWHERE,
    (X,),
    lambda x: lax.top_k(x, 2),
    lambda x: jnp.percentile(x, 30),
    lambda x: jnp.histogram(x, 4),
    lambda x: jnp.fft.fft(x),
    lambda x: lax.erf_inv(jnp.tanh(x)),
    lambda x: lax.lgamma(x),
    lambda x: lax.digamma(x + 5),
    lambda x: jax.random.normal(jax.random.key(0), x.shape) + x,
    lambda x: jnp.where(jax.random.bernoulli(jax.random.PRNGKey(1), 0.5, x.shape), x, 0),
    lambda x: x.astype(jnp.complex64) * 2,
)
_add(
    ANYWHERE,
    (SQUARE,),
    jnp.linalg.inv,
    jnp.linalg.det,
    lambda x: jnp.linalg.cholesky(x @ x.T),
    jnp.linalg.slogdet,
    lambda x: jnp.linalg.solve(x, x),
    lambda x: jax.scipy.linalg.solve_triangular(x, x),
)


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(b.dtype, jnp.inexact):
            wide = np.complex128 if jnp.issubdtype(b.dtype, jnp.complexfloating) else np.float64
            np.testing.assert_allclose(np.asarray(a).astype(wide), np.asarray(b).astype(wide), rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [*TILED, *(f"{name} anywhere" for name in ANYWHERE)])
@pytest.mark.sweep
def test_a_function_means_what_it_means_alone(name):
    function, arguments = TILED[name] if name in TILED else ANYWHERE[name.removesuffix(" anywhere")]
    same(aspen_jax.aspen(lambda *args: function(*args))(*arguments), jax.jit(function)(*arguments))


def fallbacks(function: Callable[..., Any], *arguments: np.ndarray) -> list[str]:
    jaxpr = jax.make_jaxpr(function)(*arguments)
    return [
        f"{item.equation.primitive.name}: {item.reason}"
        for item in frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).fallbacks
    ]


@pytest.mark.parametrize("name", TILED)
def test_a_function_runs_in_tiles_as_a_whole(name):
    function, arguments = TILED[name]
    assert not fallbacks(function, *arguments)
