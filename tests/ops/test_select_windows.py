"""Derivatives of pooling by a maximum or a minimum, exactly equal to jax.lax where sums are of whole numbers, in many tiles.

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


@st.composite
def windows(draw):
    """A shape, and windows on it that overlap, leave gaps and hang over."""
    rank = draw(st.integers(1, 4))
    size = [draw(st.integers(1, 4)) for _ in range(rank)]
    padding = [(draw(st.integers(0, s - 1)), draw(st.integers(0, s - 1))) for s in size]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    shape = [draw(st.integers(max(1, s - sum(p)), 9)) for s, p in zip(size, padding, strict=True)]
    if draw(st.booleans()):  # channels
        shape[-1], size[-1], padding[-1], strides[-1] = draw(st.sampled_from([1, 5, 16, 33])), 1, (0, 0), 1
    return tuple(shape), {"window_dimensions": tuple(size), "window_strides": tuple(strides), "padding": tuple(padding)}


def values(rng, shape):
    """Many ties, some infinities."""
    x = (rng.standard_normal(shape) * 2).round().astype(np.float32)
    x[rng.random(shape) < 0.1] = -np.inf
    x[rng.random(shape) < 0.1] = np.inf
    return x


def values_for(window, seed, shape):
    """Versions of JAX disagree on ties, infinities and NaN beside padding.

    XLA also loses NaN in windows of one element along 33 channels, and keeps it along 8.
    """
    rng = np.random.default_rng(seed)
    if any(map(any, window["padding"])):
        return rng.standard_normal(shape).astype(np.float32)
    x = values(rng, shape)
    if seed % 4 == 0 and max(window["window_dimensions"]) > 1:
        x[rng.random(shape) < 0.2] = np.nan
    return x


def pooled(x, window, is_max):
    return lax.reduce_window(x, -np.inf if is_max else np.inf, lax.max if is_max else lax.min, **window)


@examples(150)
@given(windows(), st.booleans(), st.integers(0, 2**31))
def test_select_and_scatter_add(shape_and_window, is_max, seed):
    shape, window = shape_and_window
    rng = np.random.default_rng(seed)
    x = values_for(window, seed, shape)
    out = jax.eval_shape(lambda x: pooled(x, window, is_max), x).shape
    source = rng.integers(-9, 9, out).astype(np.float32)
    order = lax.ge_p if is_max else lax.le_p
    check_equal(lambda source, x: lax.select_and_scatter_add_p.bind(source, x, select_prim=order, **window), source, x)


@examples(150)
@given(windows(), st.booleans(), st.integers(0, 2**31))
def test_select_and_gather_add(shape_and_window, is_max, seed):
    shape, window = shape_and_window
    rng = np.random.default_rng(seed)
    x, tangent = values_for(window, seed, shape), rng.standard_normal(shape).astype(np.float32)
    check_equal(lambda x, t: jax.jvp(lambda x: pooled(x, window, is_max), (x,), (t,)), x, tangent)


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_gradient_of_a_pooled_network_is_one_graph(channels_last):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 21, 20, 24) if channels_last else (2, 24, 21, 20)), np.float32)
    window, strides = ((1, 3, 3, 1), (1, 2, 2, 1)) if channels_last else ((1, 1, 3, 3), (1, 1, 2, 2))

    def loss(x):
        y = lax.reduce_window(jnp.tanh(x), -np.inf, lax.max, window, strides, "SAME")
        return (y * y).sum()

    gradient = aspen_jax.aspen(jax.grad(loss), strict=True)
    np.testing.assert_allclose(gradient(x), jax.grad(loss)(x), rtol=1e-4, atol=1e-5)
    batched = jax.vmap(aspen_jax.aspen(jax.grad(loss)))(jnp.stack([x, x + 1]))
    np.testing.assert_allclose(batched[1], jax.grad(loss)(x + 1), rtol=1e-4, atol=1e-5)


def test_forms_without_a_kernel_fall_back():
    x = jnp.arange(64.0).reshape(8, 8)

    def loss(x, **window):
        return (lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), **window) ** 2).sum()

    dilated = aspen_jax.aspen(lambda x, t: jax.jvp(lambda x: loss(x, padding="VALID", window_dilation=(2, 2)), (x,), (t,)))
    reasons = [fallback.reason for fallback in dilated.explain(x, x).fallbacks]
    assert any("window dilation" in reason for reason in reasons)
    narrow = aspen_jax.aspen(jax.grad(lambda x: loss(x, padding="VALID").astype(np.float32)))
    assert any("of bfloat16" in fallback.reason for fallback in narrow.explain(x.astype(jnp.bfloat16)).fallbacks)
