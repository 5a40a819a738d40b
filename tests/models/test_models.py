"""Keras models, unchanged, with seeded weights: one custom call each, no convolution or product left to XLA, the same results."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import pytest

from aspen_jax import CUSTOM_CALL_TARGET, aspen

SMALL = [
    ("MobileNetV2", (96, 90)),
    ("ResNet50", (65, 97)),
    ("DenseNet121", (71, 64)),
    ("InceptionV3", (111, 95)),
    ("VGG16", (50, 61)),
    ("EfficientNetB0", (77, 64)),
    ("Xception", (80, 99)),
]
# Deeper ones of the same kinds, at the smallest sizes: they differ in structure, not in kernels.
DEEP = [
    ("VGG19", (40, 32)),
    ("ResNet101", (40, 33)),
    ("ResNet152", (32, 45)),
    ("DenseNet169", (32, 40)),
    ("DenseNet201", (33, 32)),
]


def check(name: str, size: tuple[int, int], batch: int) -> None:
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, include_top=False, pooling="avg", input_shape=(*size, 3))
    rng = np.random.default_rng(batch)

    def seeded(variable):
        """Weights as they are drawn; statistics and shifts, which start as zeros and ones, at random."""
        value = np.asarray(variable.value)
        if value.ndim != 1:
            return value
        noise = (
            rng.uniform(0.5, 1.5, value.shape)
            if "var" in variable.path or "gamma" in variable.path
            else rng.normal(0, 0.1, value.shape)
        )
        return noise.astype(value.dtype)

    trainable = [seeded(variable) for variable in model.trainable_variables]
    fixed = [seeded(variable) for variable in model.non_trainable_variables]
    x = rng.standard_normal((batch, *size, 3), np.float32)

    def function(trainable, fixed, x):
        return model.stateless_call(trainable, fixed, x, training=False)[0]

    with jax.default_matmul_precision("highest"):
        expected = np.asarray(jax.jit(function)(trainable, fixed, x))
        compiled = jax.jit(aspen(function, strict=True)).lower(trainable, fixed, x).compile()
        result = np.asarray(compiled(trainable, fixed, x))
    hlo = compiled.as_text()
    assert hlo.count(f'custom_call_target="{CUSTOM_CALL_TARGET}"') == 1
    assert " convolution(" not in hlo
    assert " dot(" not in hlo
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert np.abs(expected).max() > 1e-3, "a vanishing output would compare equal whatever was computed"
    assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "size"), SMALL, ids=[name for name, _ in SMALL])
@pytest.mark.sweep
def test_keras_model(name, size):
    check(name, size, batch=1)


@pytest.mark.parametrize(("name", "size"), SMALL[:4], ids=[name for name, _ in SMALL[:4]])
@pytest.mark.sweep
def test_keras_model_of_batch_three(name, size):
    check(name, size, batch=3)


@pytest.mark.parametrize(("name", "size"), DEEP, ids=[name for name, _ in DEEP])
@pytest.mark.sweep
def test_deep_keras_model(name, size):
    check(name, size, batch=1)
