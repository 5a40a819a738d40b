"""Whole models in bfloat16 and float16: one custom call, and as near to float32 as what XLA makes of them."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

from aspen_jax import CUSTOM_CALL_TARGET, aspen


def assert_one_call(function, *arguments) -> None:
    hlo = jax.jit(aspen(function, strict=True)).lower(*arguments).compile().as_text() or ""
    assert hlo.count(f'custom_call_target="{CUSTOM_CALL_TARGET}"') == 1
    assert " convolution(" not in hlo


def assert_as_near(ours, theirs, exact, dtype, units: int = 2) -> None:
    """Within half again of XLA's error, or a few units of the last place of the largest output."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    ours, theirs, exact = (np.asarray(item, np.float32) for item in (ours, theirs, exact))
    bound = max(1.5 * np.abs(theirs - exact).max(), units * float(jnp.finfo(dtype).eps) * np.abs(exact).max())
    assert np.abs(ours - exact).max() <= bound


@pytest.mark.parametrize(
    ("name", "policy"), [("ResNet50", "bfloat16"), ("MobileNetV2", "mixed_bfloat16"), ("MobileNetV2", "float16")]
)
@pytest.mark.sweep
def test_keras_model_of_a_dtype_policy(name, policy):
    def model_of(policy: str) -> keras.Model:
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy(policy)
        try:
            return getattr(keras.applications, name)(weights=None, include_top=False, pooling="avg", input_shape=(45, 39, 3))
        finally:
            keras.config.set_dtype_policy("float32")

    model, wide_model = model_of(policy), model_of("float32")
    x = np.random.default_rng(0).standard_normal((1, 45, 39, 3), np.float32)
    weights = [[np.asarray(v.value) for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
    wide_weights = [
        [item.astype(np.float32) if jnp.issubdtype(item.dtype, np.floating) else item for item in part] for part in weights
    ]

    def function(weights, x):
        return model.stateless_call(*weights, x, training=False)[0]

    exact = jax.jit(lambda weights, x: wide_model.stateless_call(*weights, x, training=False)[0])(wide_weights, x)
    ours = aspen(function)(weights, x)
    assert_one_call(function, weights, x)
    assert_as_near(ours, jax.jit(function)(weights, x), exact, ours.dtype)


class _Cnn(nnx.Module):
    def __init__(self, dtype, rngs: nnx.Rngs):
        self.first = nnx.Conv(3, 24, (3, 3), strides=2, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(24, use_running_average=True, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.depthwise = nnx.Conv(24, 24, (3, 3), feature_group_count=24, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.last = nnx.Conv(24, 40, (1, 1), dtype=dtype, param_dtype=dtype, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.silu(self.norm(self.first(x))), (3, 3), (2, 2), "SAME")
        return nnx.log_softmax(self.last(x + nnx.gelu(self.depthwise(x))).mean((1, 2)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.sweep
def test_flax_model_with_gradient_and_vmap(dtype):
    definition, state = nnx.split(_Cnn(dtype, nnx.Rngs(0)))
    x = np.random.default_rng(1).standard_normal((2, 33, 27, 3), np.float32).astype(dtype)
    wide_definition, _ = nnx.split(_Cnn(jnp.float32, nnx.Rngs(0)))
    wide = jax.tree.map(lambda item: item.astype(jnp.float32), (state, x))

    def function(state, x):
        return nnx.merge(definition, state)(x)

    def wide_function(state, x):
        return nnx.merge(wide_definition, state)(x)

    assert_one_call(function, state, x)
    assert_as_near(aspen(function)(state, x), jax.jit(function)(state, x), jax.jit(wide_function)(*wide), dtype)

    def gradient(f):
        return jax.jit(jax.grad(lambda state, x: (f(state, x).astype(jnp.float32) ** 2).sum()))

    ours, theirs, exact = gradient(aspen(function))(state, x), gradient(function)(state, x), gradient(wide_function)(*wide)
    for one, other, wanted in zip(*map(jax.tree.leaves, (ours, theirs, exact)), strict=True):
        # Rounding before the pooling also moves which element a gradient flows to.
        assert_as_near(one, other, wanted, dtype, units=6)
    mapped = jax.vmap(aspen(function), (None, 1))(state, x[:, None].repeat(2, 1))
    assert_as_near(mapped[0], jax.jit(function)(state, x), jax.jit(wide_function)(*wide), dtype)


def _normalised(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _heads(x, heads):
    return x.reshape(*x.shape[:2], heads, -1)


def _llama_like(weights, x):
    """RMS norm, rotated queries and keys, grouped and causal, SwiGLU."""

    def rotated(x):
        angles = np.arange(x.shape[1])[:, None, None] * 100.0 ** (-np.arange(x.shape[-1] // 2) / 4)
        cos, sin = (f(angles).astype(x.dtype) for f in (np.cos, np.sin))
        low, high = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    y = _normalised(x, weights["norm"])
    q, k, v = (_heads(y @ weights[name], heads) for name, heads in (("q", 6), ("k", 2), ("v", 2)))
    # Not jax.nn.dot_product_attention, whose float16 XLA refuses on CPU.
    q, k, v = rotated(q).reshape(*q.shape[:2], 2, 3, -1), rotated(k), v
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * 0.3
    scores = jnp.where(np.tri(x.shape[1], dtype=bool), scores, -1e30)
    y = jnp.einsum("bkgts,bskh->btkgh", jax.nn.softmax(scores, axis=-1).astype(x.dtype), v)
    x = x + y.reshape(x.shape) @ weights["mix"]
    y = _normalised(x, weights["norm"])
    return x + (jax.nn.silu(y @ weights["gate"]) * (y @ weights["expand"])) @ weights["contract"]


def _bert_like(weights, x):
    """Weights held the other way round, softmax in the narrow dtype, a mask, GELU, layer norm behind each half."""

    def norm(x):
        return jax.nn.standardize(x, epsilon=1e-5) * weights["norm"]

    q, k, v = (_heads(x @ weights[name].T, 6) for name in ("q", "mix", "q"))
    mask = jnp.arange(x.shape[1]) < x.shape[1] - 2
    scores = jnp.where(mask, jnp.einsum("btnh,bsnh->bnts", q, k) * x.dtype.type(0.3), -jnp.inf)
    y = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, axis=-1), v).reshape(x.shape)
    x = norm(x + y @ weights["mix"])
    return norm(x + jax.nn.gelu(x @ weights["gate"], approximate=False) @ weights["contract"])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("function", [_llama_like, _bert_like])
@pytest.mark.sweep
def test_transformer_block_with_prepared_weights_gradient_and_vmap(function, dtype):
    rng = np.random.default_rng(0)
    shapes = {
        "q": (48, 48),
        "k": (48, 16),
        "v": (48, 16),
        "mix": (48, 48),
        "gate": (48, 70),
        "expand": (48, 70),
        "contract": (70, 48),
    }
    weights = {name: rng.standard_normal(shape, np.float32) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    weights["norm"] = rng.standard_normal(48, np.float32)
    weights, x = jax.tree.map(lambda item: jnp.asarray(item, dtype), (weights, rng.standard_normal((3, 13, 48), np.float32)))

    # Rounding to float32 is nothing beside rounding to 16 bits.
    wide = jax.tree.map(lambda item: item.astype(jnp.float32), (weights, x))
    exact, theirs = jax.jit(function)(*wide), jax.jit(function)(weights, x)
    assert_one_call(function, weights, x)
    marked = aspen(function, weights=0)
    for ours in (marked(weights, x), jax.jit(marked)(marked.prepare(weights, x), x), jax.jit(aspen(function))(weights, x)):
        assert_as_near(ours, theirs, exact, dtype)
    mapped = jax.vmap(aspen(function), (None, 0))(weights, x[:, None])
    assert_as_near(mapped[:, 0], theirs, exact, dtype)

    def gradient(f):
        return jax.jit(jax.grad(lambda weights, x: (f(weights, x).astype(jnp.float32) ** 2).mean()))

    ours, theirs, exact = gradient(marked)(weights, x), gradient(function)(weights, x), gradient(function)(*wide)
    for name in (name for name in exact if np.abs(exact[name]).max() > 0):
        assert_as_near(ours[name], theirs[name], exact[name], dtype, units=6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_weights_of_wide_activations_are_read_where_they_are(dtype):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 300), np.float32), jnp.asarray(rng.standard_normal((300, 400), np.float32), dtype)
    function = aspen(lambda w, x: x @ w.astype(jnp.float32))
    assert function.graph(w, x).stats()["ops"] == 1
    exact = x.astype(np.float64) @ np.asarray(w, np.float64)
    assert np.abs(function(w, x) - exact).max() <= 1e-5 * np.abs(exact).max()
