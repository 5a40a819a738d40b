"""Tuning: tiles and algorithms are timed on this machine, and what is found is kept on disk."""

import os
import tempfile

import jax
import numpy as np

from aspen_jax import aspen


@aspen(strict=True)
def layer(weights, x):
    """A dense layer."""
    return jax.nn.relu(x @ weights)


keys = jax.random.split(jax.random.key(0), 2)
weights = jax.random.normal(keys[0], (128, 128)) / 11
x = jax.random.normal(keys[1], (64, 128))
before = layer(weights, x)

with tempfile.TemporaryDirectory() as folder:
    os.environ["ASPEN_CACHE_DIR"] = folder  # an example leaves nothing behind; by default the user's cache directory
    print(layer.tune(weights, x))
    after = layer(weights, x)  # traced again, with what was found
    assert any(files for _, _, files in os.walk(folder))

for result in (before, after):
    np.testing.assert_allclose(result, layer.__wrapped__(weights, x), rtol=1e-4, atol=1e-4)
