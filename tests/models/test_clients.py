"""Models of other libraries than Keras (test_models.py), unchanged but for the decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from aspen_jax import aspen


class FlaxNet(nnx.Module):
    """Convolutions, a batch norm, a residual, pooling."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.depthwise = nnx.Conv(16, 16, (3, 3), feature_group_count=16, rngs=rngs)
        self.head = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x + nnx.silu(self.depthwise(x)), (2, 2), strides=(2, 2))
        return nnx.softmax(self.head(x.mean(axis=(1, 2))))


def images(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def check(function: Callable[..., jax.Array], *args: Any) -> None:
    """One custom call, no convolution or dot beside it, the undecorated function's answer."""
    decorated = jax.jit(aspen(function, strict=True))
    text = decorated.lower(*args).compile().as_text() or ""
    assert text.count('custom_call_target="aspen_run"') == 1
    assert " convolution(" not in text
    assert " dot(" not in text
    expected = jax.jit(function)(*args)
    np.testing.assert_allclose(decorated(*args), expected, rtol=0, atol=1e-5 * float(abs(expected).max()))


def test_a_flax_nnx_model_is_one_custom_call() -> None:
    model = FlaxNet(nnx.Rngs(0))
    model.eval()
    definition, state = nnx.split(model)
    check(lambda state, x: nnx.merge(definition, state)(x), state, images(3, 33, 35, 3))


def test_an_equinox_model_is_one_custom_call() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 12, 3, stride=2, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(12, 24, 3, groups=3, key=keys[1]),
            eqx.nn.Lambda(jax.nn.gelu),
            eqx.nn.Lambda(lambda x: x.mean(axis=(1, 2))),
            eqx.nn.Linear(24, 7, key=keys[2]),
        ]
    )
    parameters, static = eqx.partition(model, eqx.is_array)
    check(lambda parameters, x: jax.vmap(eqx.combine(parameters, static))(x), parameters, images(3, 3, 29, 31))
