"""`cost_analysis` counts what XLA counts for the undecorated function."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from aspen_jax import aspen


def of_xla(fun, *args) -> dict[str, float]:
    analysis: Any = jax.jit(fun).lower(*args).compile().cost_analysis()
    return analysis


def ones(*shape):
    return jnp.ones(shape)


def attention_layer(w, x):
    q, k, v = jnp.split(x @ w["qkv"], 3, -1)
    heads = (item.reshape(len(x), 4, -1) for item in (q, k, v))
    x = x + jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape) @ w["out"]
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


WEIGHTS = {"qkv": ones(64, 192), "out": ones(64, 64), "up": ones(64, 256), "down": ones(256, 64)}
IMAGE = ones(2, 17, 19, 8)


def convolution(stride, padding, groups, **dilation):
    def fun(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, stride, padding, dimension_numbers=numbers, feature_group_count=groups, **dilation)

    return fun


CASES = {
    "product": (jnp.matmul, (ones(40, 30), ones(30, 20))),
    "batched": (jnp.matmul, (ones(5, 40, 30), ones(5, 30, 20))),
    "products of groups": (lax.ragged_dot, (ones(40, 30), ones(3, 30, 20), jnp.array([5, 10, 20]))),
    "conv": (convolution((1, 1), "SAME", 1), (IMAGE, ones(3, 3, 8, 16))),
    "strided": (convolution((2, 3), "SAME", 1), (IMAGE, ones(5, 3, 8, 16))),
    "valid": (convolution((2, 2), "VALID", 2), (IMAGE, ones(3, 3, 4, 16))),
    "depthwise": (convolution((1, 1), "SAME", 8), (IMAGE, ones(3, 3, 1, 8))),
    "dilated": (convolution((1, 1), "SAME", 1, rhs_dilation=(2, 2)), (IMAGE, ones(3, 3, 8, 16))),
    "transposed": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (IMAGE, ones(3, 3, 8, 16))),
    "pool": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), (IMAGE,)),
    "softmax": (jax.nn.softmax, (ones(64, 64),)),
    "gelu": (jax.nn.gelu, (ones(64, 64),)),
    "transformer": (attention_layer, (WEIGHTS, ones(32, 64))),
    "gradient": (jax.grad(lambda w, x: attention_layer(w, x).sum()), (WEIGHTS, ones(32, 64))),
    "loop": (lambda w, x: lax.fori_loop(0, 9, lambda _, x: attention_layer(w, x), x), (WEIGHTS, ones(32, 64))),
    "branch": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x, x), (ones(64, 64),)),
    "with_fallbacks": (lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(8))[0] * 0 + jnp.sort(x @ x)[0], (ones(8, 8),)),
}


@pytest.mark.parametrize(("fun", "args"), CASES.values(), ids=CASES)
def test_flops_are_xlas(fun, args):
    ours, theirs = aspen(fun).cost_analysis(*args), of_xla(fun, *args)
    if fun is not CASES["with_fallbacks"][0]:
        assert ours["flops"] == pytest.approx(theirs["flops"], rel=0.02)
        assert ours["transcendentals"] == theirs.get("transcendentals", 0.0)
    assert ours["flops"] > 0
    assert ours["bytes accessed"] >= sum(leaf.nbytes for leaf in jax.tree.leaves(args))
