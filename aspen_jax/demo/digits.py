"""A small convolutional network in plain JAX, trained on scikit-learn's digits (8x8 images of handwritten figures)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.demo.keras_application import missing

_BATCH = 64
_EPOCHS = 12
_LEARNING_RATE = 0.1
_MOMENTUM = 0.9
_TEST_SHARE = 0.25

STEPS = _EPOCHS


class Digits(NamedTuple):
    """Images, float32 [n, 8, 8, 1] from 0 to 1, and their figures, int [n], apart for training and for testing."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_digits() -> Digits:
    """The data set, shuffled and parted.

    Raises:
        AspenError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise missing(error) from error
    images, labels = datasets.load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    test, rest = np.split(order, [int(_TEST_SHARE * len(order))])
    return Digits(images[rest], labels[rest], images[test], labels[test])


def logits(params: dict[str, jax.Array], images: jax.Array | np.ndarray) -> jax.Array:
    """Two convolutions with a pooling between them, and a dense layer.

    Args:
        params: as from `train`.
        images: float32 [n, 8, 8, 1].

    Returns:
        float32 [n, 10].
    """
    x = jax.nn.relu(_convolve(images, params["conv1"]) + params["bias1"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(_convolve(x, params["conv2"]) + params["bias2"])
    return x.reshape(len(x), -1) @ params["dense"] + params["bias3"]


def train(digits: Digits, on_epoch: Callable[[], object]) -> dict[str, jax.Array]:
    """Gradient descent with momentum, for some seconds.

    Args:
        digits: the data.
        on_epoch: called `STEPS` times.

    Returns:
        The trained parameters.
    """
    params = _initial_params(jax.random.key(0))
    velocity = jax.tree.map(jnp.zeros_like, params)
    order = np.random.default_rng(1)
    for _ in range(_EPOCHS):
        batches = np.array_split(order.permutation(len(digits.images)), len(digits.images) // _BATCH)
        smallest = min(map(len, batches))  # one shape, one compilation
        for batch in batches:
            batch = batch[:smallest]
            params, velocity = _step(params, velocity, digits.images[batch], digits.labels[batch])
        on_epoch()
    return params


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _step(params: Any, velocity: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
    gradients = jax.grad(_loss)(params, images, labels)
    velocity = jax.tree.map(lambda v, g: _MOMENTUM * v - _LEARNING_RATE * g, velocity, gradients)
    return jax.tree.map(jnp.add, params, velocity), velocity


def _loss(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    log_probabilities = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


def _initial_params(key: jax.Array) -> dict[str, jax.Array]:
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (4 * 4 * 32, 10)}
    he_normal = jax.nn.initializers.he_normal()
    params = {name: he_normal(part, shape) for (name, shape), part in zip(shapes.items(), jax.random.split(key, 3), strict=True)}
    return {**params, "bias1": jnp.zeros(16), "bias2": jnp.zeros(32), "bias3": jnp.zeros(10)}


def _convolve(images: jax.Array | np.ndarray, weights: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(jnp.asarray(images), weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
