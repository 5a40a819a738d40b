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
