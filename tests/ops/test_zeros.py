"""Maxima and minima of zeros of both signs and of NaN, wherever the engine takes some: the bits of `jax.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tests.rotation import examples
from tests.tiled import TINY_TILES, run_tiled


def wide(x):
    return x.astype(jnp.float32)


FUNCTIONS = {
    "max": lax.max,
    "min": lax.min,
    "max of +0": lambda a, b: jnp.maximum(a, 0.0),
    "max of -0": lambda a, b: jnp.maximum(-0.0, a),
    "min of +0": lambda a, b: jnp.minimum(0.0, a),
    "min of -0": lambda a, b: jnp.minimum(a, -0.0),
    "relu": lambda a, b: jax.nn.relu(a),
    "relu of a sum": lambda a, b: jax.nn.relu(a + b),
    "relu of a product": lambda a, b: jax.nn.relu(a * b + b),
    "relu of two sums": lambda a, b: jax.nn.relu(a * b + b + a),
    "relu6": lambda a, b: jax.nn.relu6(a),
    "relu6 of a sum": lambda a, b: jax.nn.relu6(a + b),
    "clamp of zeros": lambda a, b: lax.clamp(a.dtype.type(-0.0), a, a.dtype.type(0.0)),
    "clamp from +0": lambda a, b: lax.clamp(a.dtype.type(0.0), a, a.dtype.type(1.0)),
    "clamp to -0": lambda a, b: lax.clamp(a.dtype.type(-1.0), a, a.dtype.type(-0.0)),
    "clamp by arrays": lambda a, b: lax.clamp(jnp.minimum(a, b), b, jnp.maximum(a, b)),
    "reduce_max": lambda a, b: lax.reduce_max(a, (1,)),
    "reduce_min": lambda a, b: lax.reduce_min(a, (1,)),
    "reduce_max of columns": lambda a, b: lax.reduce_max(a, (0,)),
    "reduce_min of columns": lambda a, b: lax.reduce_min(a, (0,)),
    "reduce_max of all": lambda a, b: lax.reduce_max(a, (0, 1)),
    "reduce_max of every other": lambda a, b: lax.reduce_max(a[:, ::2], (0, 1)),
    "rows": lambda a, b: b - lax.reduce_max(a, (1,))[:, None] * 0.5,
    "columns": lambda a, b: b - lax.reduce_min(a, (0,)) * 0.5,
    "max_pool": lambda a, b: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"),
    "max_pool of channels": lambda a, b: lax.reduce_window(a, -jnp.inf, lax.max, (2, 1), (1, 1), "VALID"),
    "min_pool": lambda a, b: lax.reduce_window(a, jnp.inf, lax.min, (2, 2), (1, 2), "SAME"),
    "min_pool of channels": lambda a, b: lax.reduce_window(a, jnp.inf, lax.min, (2, 1), (1, 1), "VALID"),
    "cummax": lambda a, b: lax.cummax(a, axis=1),
    "cummin": lambda a, b: lax.cummin(a, axis=0, reverse=True),
    "scatter_max": lambda a, b: wide(a).at[np.arange(len(b)) % 2].max(wide(b)),
    "scatter_min": lambda a, b: wide(a).at[np.arange(len(b)) % 2].min(wide(b)),
    "argmax": lambda a, b: jnp.argmax(a, axis=1),
    "argmin": lambda a, b: jnp.argmin(a, axis=1),
    "sign": lambda a, b: jnp.sign(a),
    "abs": lambda a, b: jnp.abs(a),
}


def same(ours, theirs) -> None:
    assert ours.dtype == theirs.dtype
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    np.testing.assert_array_equal(ours, theirs)  # NaN where NaN is
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(ours[numbers]), np.signbit(theirs[numbers]))


def of_zeros(rng, shape, others):
    """Mostly zeros of both signs."""
    x = np.where(rng.random(shape) < 0.5, np.float32(0.0), np.float32(-0.0))
    return np.where(rng.random(shape) < 0.1, rng.choice(np.float32(others), shape), x)


@pytest.mark.parametrize("name", FUNCTIONS)
@examples(12)
@given(
    st.tuples(st.integers(4, 9), st.sampled_from([4, 16, 33, 150])),
    st.sampled_from([[0.0], [-0.0, 1.0, -1.0], [np.nan, np.inf, -np.inf, -1.0]]),
    st.sampled_from([np.float32, jnp.bfloat16]),
    st.integers(0, 2**31),
)
@pytest.mark.sweep
def test_the_bits_of_jax(name, shape, others, dtype, seed):
    rng = np.random.default_rng(seed)
    a, b = (of_zeros(rng, shape, others).astype(dtype) for _ in range(2))
    function = FUNCTIONS[name]
    (ours,) = run_tiled(function, (a, b), machine=TINY_TILES)
    same(ours, np.asarray(jax.jit(function)(a, b)))


@pytest.mark.parametrize("bound", ["relu", "relu6", "max of -0", "clamp to -0"])
def test_in_an_epilogue(bound):
    """Of a product whose results are zeros of either sign: the bound is applied in registers."""
    rng = np.random.default_rng(0)
    x, scale = np.ones((33, 20), np.float32), of_zeros(rng, (33, 40), [np.nan, 1.0, -1.0])
    w = np.abs(rng.standard_normal((20, 40), np.float32))

    def function(x, scale):
        return FUNCTIONS[bound](x @ w * scale, scale)

    (ours,) = run_tiled(function, (x, scale))
    theirs = np.asarray(jax.jit(function)(x, scale))
    np.testing.assert_array_equal(np.signbit(ours) & ~np.isnan(ours), np.signbit(theirs) & ~np.isnan(theirs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
