"""Generated CUDA code of rows, attention, indices and moves, run by the host, against XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, exactly, ops_of, random

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


# By a warp or a block a row, several rows a warp, and rows too long to be kept.
@pytest.mark.parametrize("shape", [(3, 2, 70), (40, 130), (1, 3000), (2500, 9), (2, 13000)])
def test_rows(shape):
    def function(x, scale, bias, image):
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        layer_norm = (x - mean) / jnp.sqrt(variance + 1e-5) * scale + bias
        rms_norm = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale
        across = image - image.mean((1, 2), keepdims=True)
        across = across * lax.rsqrt(jnp.square(across).mean((1, 2), keepdims=True) + 1e-5)
        return layer_norm, rms_norm, across, jax.nn.softmax(x), jax.nn.softmax(x, 0), jax.nn.logsumexp(x, -1)

    check(function, random(0, *shape), random(1, shape[-1]), random(2, shape[-1]), random(3, 2, 9, 7, 11), tolerance=2e-5)


def test_reductions():
    def function(n, b, x):
        return (
            jnp.all(b, 1),
            jnp.any(b, 0),
            [reduce(n, (1,)) for reduce in (lax.reduce_and, lax.reduce_or, lax.reduce_xor)],
            lax.reduce_xor(b, (0, 1)),
            jax.nn.relu(x.max((0, 2))),
            x.sum((0, 1, 2, 3)),
            x[:, :0].sum(1),
        )

    rng = np.random.default_rng(0)
    check(function, rng.integers(-9, 9, (5, 70)).astype(np.int32), rng.random((5, 70)) > 0.1, random(1, 5, 4, 80, 9))


def test_places_of_extremes():
    def function(x, n, b):
        return x.argmax(-1), x.argmin(0), n.argmax(-1), n.argmin(-1), n.astype(jnp.uint8).argmin(-1), b.argmax(-1), b.argmin(-1)

    rng = np.random.default_rng(0)
    x = random(1, 3, 70, 37)
    x[1, :, 5], x[0, 3] = np.nan, 2
    check(function, x, rng.integers(-3, 3, (5, 1000)).astype(np.int32), rng.random((6, 50)) > 0.9)


def test_moves():
    def function(x, y, n):
        return (
            lax.pad(x, np.float32(3), ((1, 2, 0), (-1, 1, 2), (0, -2, 1))),
            lax.pad(n > 2, False, ((2, -1, 1),)),
            jnp.concatenate([x, y, x[:, :, ::2]], 2),
            jnp.concatenate([n, n + 1]).astype(jnp.uint8),
            jnp.stack([x[0], x[1]], 1),
        )

    check(function, random(0, 2, 5, 7), random(1, 2, 5, 3), np.arange(9, dtype=np.int32))


def test_gathers():
    def function(x, i, j):
        return (
            x[i],
            x[i, j],
            jnp.take(x, i, axis=1),
            jnp.take(x, i.astype(jnp.uint32), axis=0),
            jnp.take_along_axis(x[:, :, 0], jnp.arange(16).reshape(2, 8) * 3 % 9, axis=0),
            lax.dynamic_slice(x, (j[0], i[1], 0), (2, 3, 4)),
            x.at[i].get(mode="fill", fill_value=-7.0),
            (x > 0).at[i].get(mode="fill", fill_value=True),
            x.astype(jnp.float16)[:, i],
        )

    check(function, random(0, 9, 8, 5), np.array([3, 0, -1, 100, -9, 8], np.int32), np.array([2, 7, 1, -100, 0, 3], np.int32))


def test_scatters():
    def function(x, i, u, k):
        return (
            x.at[i].set(u),
            x.at[i].add(u),
            x.at[i, 2].multiply(u[:, 1]),
            x.at[:, i[:4]].max(1.5),
            x.at[i].min(u, mode="clip"),
            lax.dynamic_update_slice(x, u[:2, :3], (k, k)),
            (x > 0).at[i].set(True),
            x.astype(jnp.bfloat16).at[i].set(u.astype(jnp.bfloat16)),
        )

    check(function, random(0, 9, 6), np.array([3, 3, 0, 50, -1, -20], np.int32), random(1, 6, 6), np.int32(4))


def test_running_results():
    def function(x, n):
        return (
            jnp.cumsum(x, 0),
            lax.cumsum(x, 2, reverse=True),
            lax.cummax(x, 0, reverse=True),
            lax.cummin(n, 0),
            jnp.cumprod(n % 3 + 1, 0),
            lax.cumlogsumexp(x, 1),
            lax.cumlogsumexp(x, 0, reverse=True),
        )

    x = random(0, 7, 13, 5)
    x[:3, 2], x[4, 1] = -np.inf, np.inf
    check(function, x, np.arange(40, dtype=np.int32) * 7 % 11 - 4)


# Queries, keys, heads and width: more and fewer than a block has, wide and narrow, and no multiples of a vector.
ATTENTIONS = [(37, 37, 3, 16), (150, 150, 2, 64), (20, 131, 2, 40), (70, 70, 1, 128), (33, 65, 2, 7), (10, 70, 2, 256)]
PRECISIONS = [(jnp.float32, True, 1e-5), (jnp.float32, False, 3e-3), (jnp.bfloat16, False, 2e-2), (jnp.float16, False, 3e-3)]


@pytest.mark.parametrize("sizes", ATTENTIONS)
@pytest.mark.parametrize(("dtype", "exact", "tolerance"), PRECISIONS)
@pytest.mark.sweep
def test_attention(dtype, exact, tolerance, sizes):
    num_queries, num_keys, heads, width = sizes

    def masked(q, k, v, mask, bias):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3 + bias
        scores = jnp.where(mask, jnp.tanh(scores) * 5, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v) * 2 + 1

    def causal(q, k, v):
        scores = jnp.where(jnp.tri(num_queries, num_keys, dtype=bool), jnp.einsum("bhqd,bhdk->bhqk", q, k) / 4, -1e9)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)

    q, k, v = (random(i, 2, count, heads, width, dtype=dtype) for i, count in enumerate((num_queries, num_keys, num_keys)))
    mask = np.random.default_rng(3).random((2, 1, num_queries, num_keys)) > 0.3
    mask[..., 2, :] = False  # a row without anything: NaN
    bias = random(4, heads, num_queries, num_keys).astype(dtype)
    by_heads = [q.swapaxes(1, 2), k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)]
    for function, arguments in ((masked, (q, k, v, mask, bias)), (causal, by_heads)):
        function = exactly(function) if exact else function
        assert "attention" in {op.family.name for op in ops_of(function, arguments)}
        check(function, *arguments, tolerance=tolerance)


def test_attention_that_is_no_softmax_is_three_ops():
    def function(q, k, v):
        weights = jax.nn.relu(jnp.einsum("bqd,bkd->bqk", q, k))
        return jnp.einsum("bqk,bkd->bqd", weights / (weights.sum(-1, keepdims=True) + 1), v)

    arguments = [random(i, 2, 70, 16) for i in range(3)]
    assert [op.family.name for op in ops_of(function, arguments)].count("matmul") == 2
    check(exactly(function), *arguments)
