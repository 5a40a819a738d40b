"""The convolutional networks that Keras ships, unchanged."""

from __future__ import annotations

from aspen_jax.demo.keras_application import keras_application
from benchmarks.zoo.model import Model, Size


def build(name: str, size: Size) -> Model:
    """A model of keras.applications with random weights, on seeded images.

    Raises:
        InputError: there is no such model, or it does not take images of that size.
        AspenError: Keras is not installed or runs on another backend already.
    """
    model = keras_application(name, size.image_size)
    return Model(name, model.predict, model.params, (model.random_images(size.batch),), model.calibrated_params)
