"""What runs along an axis, cumulative operations and searches for the extreme, against numpy and jax in many tiles.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import aspen_jax
from tests.ops.test_indexing import check_equal
from tests.rotation import examples
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


@examples(80)
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


@examples(40)
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


@examples(80)
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


SORTED = [np.float32, np.float32, np.int32, np.uint32, np.int8, np.uint8, np.bool_, np.float16, jnp.bfloat16]


def with_ties(rng, shape, dtype):
    """Numbers of any sign, many of them equal; zeros of both signs, infinities and NaN among floats."""
    x = (rng.standard_normal(shape) * 4).round().astype(dtype)
    if jnp.issubdtype(dtype, np.floating):
        for value, share in ((np.nan, 0.05), (-np.nan, 0.05), (np.inf, 0.05), (-np.inf, 0.05), (-0.0, 0.1)):
            x[rng.random(shape) < share] = value
    return x


@st.composite
def lines(draw):
    """A shape and an axis: short and long ones."""
    shape = [draw(st.integers(1, 7)) for _ in range(draw(st.integers(1, 3)))]
    axis = draw(st.integers(0, len(shape) - 1))
    shape[axis] = draw(st.sampled_from([1, 2, 40, 256, 257, 900]))
    return tuple(shape), axis


@examples(100)
@given(lines(), st.sampled_from(SORTED), st.integers(0, 2**31))
def test_sort(line, dtype, seed):
    shape, axis = line
    x = with_ties(np.random.default_rng(seed), shape, dtype)
    check_equal(lambda x: lax.sort(x, dimension=axis), x)
    check_equal(lambda x: jnp.argsort(x.T, axis=axis if len(shape) == 1 else 0), x)
    check_equal(lambda x: jnp.argsort(x, axis=axis, descending=True), x)


@examples(60)
@given(lines(), st.integers(1, 3), st.integers(0, 2**31))
def test_sort_by_several_keys(line, num_keys, seed):
    shape, axis = line
    rng = np.random.default_rng(seed)
    operands = [with_ties(rng, shape, SORTED[i]) for i in rng.integers(0, len(SORTED), num_keys)]
    operands.append(rng.standard_normal(shape).astype(np.float32))
    check_equal(lambda *xs: lax.sort(xs, dimension=axis, num_keys=num_keys, is_stable=True), *operands)


@examples(60)
@given(lines(), st.sampled_from(SORTED), st.integers(1, 9), st.integers(0, 2**31))
def test_top_k(line, dtype, k, seed):
    shape, axis = line
    x = np.moveaxis(with_ties(np.random.default_rng(seed), shape, dtype), axis, -1)
    check_equal(lambda x: lax.top_k(x, min(k, shape[axis])), x)


def test_sorts_that_tiles_do_not_do_fall_back():
    x = jnp.ones(2**20 + 1)
    (fallback,) = aspen_jax.aspen(jnp.sort).explain(x).fallbacks
    assert "of 1048577 elements along an axis" in fallback.reason
    keys = [jnp.ones(9)] * 5
    (fallback,) = aspen_jax.aspen(lambda *keys: lax.sort(keys, num_keys=5)).explain(*keys).fallbacks
    assert "by 5 keys" in fallback.reason


def test_sorting_is_differentiated_and_mapped():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 400)), np.float32)
    weights = jnp.arange(400.0)
    gradient = jax.grad(aspen_jax.aspen(lambda x: (jnp.sort(x, axis=-1) * weights).sum()))(x)
    np.testing.assert_allclose(gradient, np.argsort(np.argsort(x, axis=-1), axis=-1), rtol=1e-6)
    np.testing.assert_array_equal(jax.vmap(aspen_jax.aspen(jnp.sort))(x), np.sort(x, axis=-1))


@pytest.mark.parametrize("mode", ["forced", "default"])
@pytest.mark.parametrize("shape", [(3, 2, 0), (0,)])
def test_nothing_is_sorted_beside_what_tiles_compute(shape, mode, request):
    """A window of one element fits in no axis without elements."""
    if mode == "default":
        request.getfixturevalue("choosing")
    empty, places = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    x = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)

    def function(x, empty, places):
        by_key = lax.sort((empty, places), dimension=empty.ndim - 1, num_keys=1)
        return by_key, lax.top_k(empty, 0), jnp.tanh(x) @ x

    assert "aspen_run" in jax.jit(aspen_jax.aspen(function)).lower(x, empty, places).as_text()
    by_key, largest, product = aspen_jax.aspen(function)(x, empty, places)
    for ours, dtype in zip((*by_key, *largest), (np.float32, np.int32) * 2, strict=True):
        assert ours.shape == shape
        assert ours.dtype == dtype
    np.testing.assert_allclose(product, np.tanh(x) @ x, rtol=1e-3, atol=1e-3)
