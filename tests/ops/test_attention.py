"""Attention run depth-first: products and the row program between them as one op, against float64."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from aspen_jax import aspen
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops.attention import ATTENTION
from aspen_jax.passes import attention, run_passes
from tests.changed_words import most_are_refused
from tests.tiled import run_tiled


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def part_of(function, *arguments):
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    assert not trace.fallbacks, [(item.name, item.reason) for item in trace.fallbacks]
    (part,) = trace.parts
    return run_passes(part)


def check(function, *arguments, ops=1, tolerance=1e-5):
    """One attention op and the same result as without the decorator, in small tiles too."""
    part = part_of(function, *arguments)
    assert sum(op.family is ATTENTION for op in part.ops) == ops, str(part)
    expected = np.asarray(jax.jit(function)(*arguments))
    for ours in (run_tiled(function, arguments)[0], np.asarray(aspen(function)(*arguments))):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))
        scale = np.nanmax(np.abs(expected), initial=1e-30)
        assert np.nanmax(np.abs(ours - expected), initial=0) <= tolerance * scale


@pytest.mark.parametrize(
    "shape", [(1, 1, 17, 3, 8), (2, 33, 33, 4, 16), (3, 7, 130, 2, 5), (1, 70, 1, 2, 8), (1, 100, 513, 1, 64)]
)
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "bias", "empty rows"])
@pytest.mark.sweep
def test_dot_product_attention(shape, mask):
    batch, queries, keys, heads, width = shape
    q, k, v = (
        normal(batch, queries, heads, width),
        normal(batch, keys, heads, width, seed=1),
        normal(batch, keys, heads, width, seed=2),
    )
    rng = np.random.default_rng(0)
    extra: dict[str, Any] = {}
    if mask == "padding":
        extra["mask"] = rng.random((batch, 1, 1, keys)) < 0.7
    if mask == "bias":
        extra["bias"] = normal(1, heads, queries, keys, seed=3)
    if mask == "empty rows":
        extra["mask"] = np.arange(queries)[None, None, :, None] % 3 > np.zeros((batch, 1, 1, keys))

    def function(q, k, v, extra):
        return jax.nn.dot_product_attention(q, k, v, is_causal=mask == "causal", **extra)

    check(function, q, k, v, extra, ops=int(queries > 1 and keys > 1))


def test_a_product_of_softmaxes_is_cut_into_chains_that_do_not_overlap():
    x, w = normal(96, 96), normal(96, 96, seed=1)

    def repeated(x, w):
        for _ in range(6):
            x = jax.nn.softmax(x @ w, axis=-1)
        return x

    check(repeated, x, w, ops=3)


def test_grouped_queries():
    q, k, v = normal(2, 19, 6, 8), normal(2, 23, 2, 8), normal(2, 23, 2, 8, seed=1)
    check(lambda q, k, v: jax.nn.dot_product_attention(q, k, v), q, k, v)


def test_the_scores_of_a_thousand_tokens_never_exist():
    q, k, v = (normal(1, 1024, 4, 32, seed=i) for i in range(3))
    function = aspen(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    graph = function.graph(q, k, v)
    assert graph.workspace_bytes <= 4 * 1024 * 1024 * 4 / 10


def test_gradients_and_batches_are_right():
    q, k, v = (normal(2, 11, 3, 8, seed=i) for i in range(3))

    def plain(q, k, v):
        weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k) * 0.3, axis=-1)
        return jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(2, 11, 24)

    check(plain, q, k, v)
    for argument in range(3):
        ours = jax.grad(lambda *a: (aspen(plain)(*a) ** 2).sum(), argument)(q, k, v)
        theirs = jax.grad(lambda *a: (plain(*a) ** 2).sum(), argument)(q, k, v)
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    stacked = [jnp.stack([x, x + 1]) for x in (q, k, v)]
    np.testing.assert_allclose(jax.vmap(aspen(plain))(*stacked), jax.vmap(plain)(*stacked), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [(2, 33, 33, 4, 16), (1, 1, 70, 2, 8), (3, 7, 130, 2, 5)])
def test_16_bits_are_rounded_no_more_than_the_program_says(dtype, shape):
    batch, queries, keys, heads, width = shape
    q, k, v = (
        normal(batch, queries, heads, width).astype(dtype),
        normal(batch, keys, heads, width, seed=1).astype(dtype),
        normal(batch, keys, heads, width, seed=2).astype(dtype),
    )

    def library(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=queries == keys)

    def plain(q, k, v):
        # Scores, softmax and weights all called narrow by the jaxpr, and an epilogue behind the last product.
        weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k) * q.dtype.type(0.3), axis=-1)
        return jax.nn.relu(jnp.einsum("bnts,bsnh->btnh", weights, v))

    for function in (library, plain):
        wide = [item.astype(np.float32) for item in (q, k, v)]
        exact = np.asarray(function(*wide))
        part = part_of(function, q, k, v)
        assert sum(op.family is ATTENTION for op in part.ops) == int(queries > 1), str(part)
        aspen(function).graph(q, k, v).verify()
        bound = 2 * float(jnp.finfo(dtype).eps) * np.abs(exact).max()
        for ours in (run_tiled(function, (q, k, v))[0], np.asarray(aspen(function)(q, k, v))):
            assert ours.dtype == dtype
            assert np.abs(ours.astype(np.float32) - exact).max() <= bound


MASKS = {
    "causal": lambda row, column: column <= row,
    "more keys than queries": lambda row, column: column <= row + 90,
    "window": lambda row, column: (column <= row) & (column > row - 40),
    "documents": lambda row, column: (column <= row) & ((column >= 99) | (row < 99)),
}
EVERYTHING = {
    "first row masked": lambda row, column: column < row,
    "future only": lambda row, column: column > row,
}


def masked(mask, how, q, k, v):
    queries, keys = q.shape[1], k.shape[1]
    keep = mask(jnp.arange(queries)[:, None], jnp.arange(keys))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    if how == "added":
        scores = scores + jnp.where(keep, 0.0, -1e9)
    else:
        scores = jnp.where(keep, scores, {"lowest": jnp.finfo(jnp.float32).min, "infinite": -jnp.inf}[how])
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, axis=-1), v)


def reach_of(function, *arguments):
    (op,) = (op for op in part_of(function, *arguments).ops if op.family is ATTENTION)
    return op.attrs.reach


@pytest.mark.parametrize("how", ["added", "lowest", "infinite"])
@pytest.mark.parametrize("name", [*MASKS, *EVERYTHING])
@pytest.mark.sweep
def test_what_a_mask_leaves_out_is_left_out_exactly(name, how, monkeypatch):
    function = functools.partial(masked, (MASKS | EVERYTHING)[name], how)
    keys = 290 if name == "more keys than queries" else 200
    q, k, v = normal(2, 200, 3, 16), normal(2, keys, 3, 16, seed=1), normal(2, keys, 3, 16, seed=2)
    short = {"more keys than queries": 91}.get(name, 1) if name in MASKS else keys
    assert reach_of(function, q, k, v) == short
    check(function, q, k, v)
    ours = np.asarray(aspen(function)(q, k, v))
    monkeypatch.setattr(attention, "reach_of", lambda scores, *others: (scores.output.shape[-1], 0))
    assert reach_of(function, q, k, v) == keys
    np.testing.assert_array_equal(ours, np.asarray(aspen(functools.partial(function))(q, k, v)))


@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
@pytest.mark.parametrize("how", ["added", "infinite"])
@pytest.mark.sweep
def test_what_is_masked_still_spoils_what_it_would(operand, value, how):
    """Products with zeros are not zeros where a value is not finite; nor are sums with -1e9 low where a score is larger."""
    arrays = [normal(1, 150, 2, 8, seed=i) for i in range(3)]
    arrays[operand][0, 140, 1, 3] = value
    function = functools.partial(masked, MASKS["causal"], how)
    assert reach_of(function, *arrays) == 1
    np.testing.assert_allclose(aspen(function)(*arrays), jax.jit(function)(*arrays), rtol=1e-4, atol=1e-5)


def test_a_mask_that_depends_on_inputs_leaves_nothing_out():
    q, k, v = (normal(1, 100, 2, 8, seed=i) for i in range(3))

    def function(q, k, v, length):
        return masked(lambda row, column: (column <= row) & (column < length), "lowest", q, k, v)

    assert reach_of(function, q, k, v, np.int32(70)) == 100
    check(function, q, k, v, np.int32(70))


def test_products_far_wider_than_the_rows_between_them_stay_apart():
    """The logits behind a last norm: each tile would read the whole table."""
    x, w, table = normal(64, 512), normal(512, 128), normal(4000, 128)
    check(lambda x: jax.nn.standardize(x @ w) @ table.T, x, ops=0)


def test_a_condition_may_end_attention():
    q, k, v = (normal(2, 9, 3, 8, seed=i) for i in range(3))
    function = aspen(lambda q, k, v: jax.nn.dot_product_attention(q, k, v) > 0.1)
    function.graph(q, k, v).verify()
    assert function(q, k, v).dtype == np.bool_


def test_any_changed_word_is_refused_or_right():
    """A file may hold any number in any parameter word: never another error than the format's, never one that costs memory."""
    q, k, v = (normal(1, 9, 2, 4, seed=i) for i in range(3))
    graph = aspen(lambda q, k, v: jax.nn.relu(jax.nn.dot_product_attention(q, k, v, is_causal=True) + v)).graph(q, k, v)
    most_are_refused(graph, ATTENTION, (q, k, v))
