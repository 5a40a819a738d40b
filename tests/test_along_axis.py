"""What runs along an axis, cumulative operations and searches for the extreme, against numpy and jax in many tiles.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aspen_jax
from tests.test_indexing import check_equal
from tests.tiled import run_tiled

CUMULATIVE = {
    "cumsum": (lax.cumsum, np.cumsum),
    "cumprod": (lax.cumprod, np.cumprod),
    "cummax": (lax.cummax, np.maximum.accumulate),
    "cummin": (lax.cummin, np.minimum.accumulate),
    "cumlogsumexp": (lax.cumlogsumexp, np.logaddexp.accumulate),
}
# What a result may be off by, relative to its size, and how precise a dtype is.
FLOATS = {np.float32: 1e-6, np.float16: 2e-3, jnp.bfloat16: 1e-2}


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(sorted(CUMULATIVE)), st.sampled_from(list(FLOATS)), st.booleans(), st.integers(0, 2**31))
def test_cumulative_floats(data, name, dtype, reverse, seed):
    shape = tuple(data.draw(st.integers(0 if seed % 7 == 0 else 1, 70)) for _ in range(data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    ours_of, exact_of = CUMULATIVE[name]
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    (ours,) = run_tiled(lambda x: ours_of(x, axis, reverse=reverse), (x,))
    wide = x.astype(np.float64)
    exact = np.flip(exact_of(np.flip(wide, axis), axis=axis), axis) if reverse else exact_of(wide, axis=axis)
    assert ours.dtype == x.dtype
    np.testing.assert_allclose(ours.astype(np.float64), exact, rtol=FLOATS[dtype], atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([np.int32, np.int8, np.uint8, np.int16]), st.booleans(), st.integers(0, 2**31))
def test_cumulative_integers(data, dtype, reverse, seed):
    name = data.draw(st.sampled_from(["cumsum", "cumprod", "cummax", "cummin"]))
    shape = tuple(data.draw(st.integers(1, 20)) for _ in range(data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(seed).integers(-100, 100, shape).astype(dtype)
    check_equal(lambda x: CUMULATIVE[name][0](x.T.T, axis, reverse=reverse), x)


def test_cumulative_logarithms_of_sums_meet_infinities():
    rows = [[1.0, -np.inf, 2.0, 3.0], [-np.inf, -np.inf, 0.0, 1.0], [0.0, np.inf, 1.0, 2.0], [0.0, np.nan, 1.0, np.inf]]
    x = np.array(rows, np.float32)
    (ours,) = run_tiled(lambda x: lax.cumlogsumexp(x, 1), (x,))
    with np.errstate(invalid="ignore"):
        exact = np.logaddexp.accumulate(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(ours, exact, rtol=1e-6)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.booleans(), st.integers(0, 2**31))
def test_arg_reduce(data, is_max, seed):
    dtype = data.draw(st.sampled_from([np.float32, np.float32, np.int32, np.uint8, np.bool_, np.float16, jnp.bfloat16]))
    shape = tuple(data.draw(st.integers(1, 30)) for _ in range(data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    long = data.draw(st.sampled_from([None, 700]))
    shape = shape if long is None else tuple(long if d == axis else min(s, 5) for d, s in enumerate(shape))
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 4).round().astype(dtype)  # many ties
    if jnp.issubdtype(dtype, np.floating) and seed % 3 == 0:
        x[rng.random(shape) < 0.1] = np.nan
        x[rng.random(shape) < 0.05] = np.inf
    check_equal(lambda x: (lax.argmax if is_max else lax.argmin)(x, axis, np.int32), x)
    check_equal(lambda x: (jnp.argmax if is_max else jnp.argmin)(x.T, axis), x)


@pytest.mark.parametrize("function", [jnp.cumsum, jnp.cumprod, jax.lax.cummax, jax.lax.cumlogsumexp])
def test_transformations_of_cumulative_operations(function):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 9), np.float32))
    loss = lambda f: lambda x: (f(x, 1) ** 2).sum()  # noqa: E731
    plain, ours = loss(function), loss(lambda x, axis: aspen_jax.aspen(lambda x: function(x, axis))(x))
    np.testing.assert_allclose(jax.grad(ours)(x), jax.grad(plain)(x), rtol=1e-4, atol=1e-5)
    mapped = jax.vmap(aspen_jax.aspen(lambda x: function(x, 0)))(x)
    np.testing.assert_allclose(mapped, jax.vmap(lambda x: function(x, 0))(x), rtol=1e-5)
