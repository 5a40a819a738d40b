"""Attention run depth-first: products and the row program between them as one op, against float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from aspen_jax import aspen, frontend
from aspen_jax.errors import GraphFormatError
from aspen_jax.ops.attention import ATTENTION
from aspen_jax.passes import run_passes
from tests.test_kernels import run_tiled


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


def test_a_condition_may_end_attention():
    q, k, v = (normal(2, 9, 3, 8, seed=i) for i in range(3))
    function = aspen(lambda q, k, v: jax.nn.dot_product_attention(q, k, v) > 0.1)
    function.graph(q, k, v).verify()
    assert function(q, k, v).dtype == np.bool_


def test_any_changed_word_is_refused_or_right():
    """A file may hold any number in any parameter word: never another error than the format's, never one that costs memory."""
    q, k, v = (normal(1, 9, 2, 4, seed=i) for i in range(3))
    graph = aspen(lambda q, k, v: jax.nn.relu(jax.nn.dot_product_attention(q, k, v, is_causal=True) + v)).graph(q, k, v)
    (number,) = (number for number in range(graph.num_ops) if graph.program().ops[number].family is ATTENTION)
    words = graph.ops[:number, 3].sum() + np.arange(graph.ops[number, 3])
    refused = 0
    for word in words.tolist():
        for value in {graph.params[word] + step for step in (-2, -1, 1, 2)} | {-(1 << 63), -(1 << 40), 1 << 40, (1 << 63) - 1}:
            params = graph.params.copy()
            params[word] = value
            try:
                dataclasses.replace(graph, params=params).verify()
            except GraphFormatError:
                refused += 1
    assert refused > 4 * len(words)
