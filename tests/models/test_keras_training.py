"""A Keras model whose `stateless_call` is decorated: predict, evaluate, fit and what is saved are as without the decorator."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

from typing import Any

import numpy as np
import pytest

from aspen_jax import aspen
from aspen_jax.api.function import AspenFunction

keras: Any = pytest.importorskip("keras")

EXAMPLES, CLASSES = 40, 5
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, CLASSES, EXAMPLES)


def images():
    inputs = keras.Input((12, 12, 3))
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, kernel_regularizer="l2")(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dropout(0.3)(keras.layers.MaxPooling2D()(x))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Flatten()(x)))


def tokens():
    inputs = keras.Input((10,), dtype="int32")
    x = keras.layers.Embedding(30, 16)(inputs)
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 8, dropout=0.2)(x, x))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(x)))


def recurrent():
    inputs = keras.Input((10, 6))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.LSTM(8)(inputs)))


DATA = {
    images: RANDOM.normal(size=(EXAMPLES, 12, 12, 3)).astype(np.float32),
    tokens: RANDOM.integers(0, 30, (EXAMPLES, 10)).astype(np.int32),
    recurrent: RANDOM.normal(size=(EXAMPLES, 10, 6)).astype(np.float32),
}


def life(make, decorate, path):
    """All that a model gives from before its training to after it was saved."""
    keras.utils.set_random_seed(0)
    model = make()
    traced_for = []
    if decorate:
        original = model.stateless_call

        def stateless_call(*args, **kwargs):
            traced_for.append(kwargs.get("training"))
            return original(*args, **kwargs)

        model.stateless_call = aspen(stateless_call)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2, epsilon=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    x = DATA[make]
    results = {"untrained": model.predict(x, batch_size=16, verbose=0)}
    results |= model.fit(x, LABELS, epochs=2, batch_size=16, validation_data=(x, LABELS), shuffle=False, verbose=0).history
    results["evaluated"] = model.evaluate(x, LABELS, batch_size=16, verbose=0)
    results["batch"] = model.train_on_batch(x[:7], LABELS[:7])
    results["trained"] = model.predict(x, batch_size=16, verbose=0)
    model.save(path)
    results["loaded"] = keras.saving.load_model(path).predict(x, batch_size=16, verbose=0)
    results |= {str(index): weight for index, weight in enumerate(model.get_weights())}
    if decorate:
        assert isinstance(model.stateless_call, AspenFunction)
        assert {False, True} <= set(traced_for)
    return results


@pytest.mark.filterwarnings("default:.*copy keyword", "default:.*dtype int64")  # of Keras itself
@pytest.mark.parametrize("make", DATA)
@pytest.mark.sweep
def test_a_model_lives_as_undecorated(make, tmp_path):
    ours, theirs = (life(make, decorate, tmp_path / "model.keras") for decorate in (True, False))
    assert ours.keys() == theirs.keys()
    assert ours["loss"][1] < ours["loss"][0]
    for name, want in theirs.items():
        np.testing.assert_allclose(ours[name], want, rtol=2e-3, atol=2e-4, err_msg=name)
