"""What tests/split/test_split_link.py serves from another process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

RANDOM = np.random.default_rng(0)
WEIGHTS = [RANDOM.normal(size=(24, 24)).astype(np.float32) / 5 for _ in range(4)]


def net(x):
    """A skip crosses three layers; the results are a tree."""
    first = y = jax.nn.relu(x @ WEIGHTS[0])
    for weights in WEIGHTS[1:]:
        y = jax.nn.relu(y @ weights + x)
    return {"y": y + first, "largest": jnp.argmax(y, -1), "mean": y.mean()}


def net_args():
    return jax.ShapeDtypeStruct((16, 24), np.float32)


HALF = np.float32(0.5)


def halved(x):
    """For a callback: reads a global."""
    return np.asarray(x) * HALF


def calling(callback):
    """A function that calls one of Python."""
    return lambda x: jax.pure_callback(callback, jax.ShapeDtypeStruct((), np.float32), x)
