"""A model of keras.applications as a function of its parameters and an image."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import AspenError, InputError

_SEED = 0
_PIXELS = 224  # across and down, for models that take images of any size
_BLOBS = 8  # along each side of a random image
_DEEPEST_STRIDE = 32  # of the models' last feature maps
_CALIBRATION_PIXELS = 96  # of these maps; few make statistics that amplify rounding errors without bound

Params = tuple[list[jax.Array], list[jax.Array]]


@dataclasses.dataclass(frozen=True)
class KerasApplication:
    """A model, as Keras ships it, with seeded random weights.

    Attributes:
        name: its name in keras.applications.
        predict: (params, image) -> class probabilities, float32 [batch, 1000].
        params: its trainable and its other variables, as Keras initialises them.
        image_shape: height, width and channels of the images it takes.
        preprocess: turns RGB images, float32 0 to 255, into what the model was designed for.
    """

    name: str
    predict: Callable[[Any, jax.Array], jax.Array]
    params: Params
    image_shape: tuple[int, int, int]
    preprocess: Callable[[np.ndarray], np.ndarray]
    _keras_model: Any

    def random_images(self, batch: int) -> jax.Array:
        """Seeded images of coloured blobs, float32 [batch, height, width, channels].

        Noise would not do: deep layers see the same in all of it, and what batch normalisation then amplifies is rounding errors.

        Raises:
            InputError: the batch is empty.
        """
        if batch < 1:
            raise InputError(f"the batch is {batch}; take 1 or more images")
        coarse = np.random.default_rng(_SEED).uniform(0, 255, (batch, _BLOBS, _BLOBS, self.image_shape[2])).astype(np.float32)
        pixels = np.array(jax.image.resize(coarse, (batch, *self.image_shape), "linear"))
        return jax.numpy.asarray(self.preprocess(pixels))

    def calibrated_params(self) -> Params:
        """The parameters with the moving statistics of batch normalisation measured on seeded images, as training leaves them.

        Untrained statistics let the activations of some models (MobileNetV2) die out on the way: the output is then the same for
        any image and any arithmetic, and comparing it would prove nothing.
        """
        norms = [layer for layer in self._keras_model.layers if isinstance(layer, _keras().layers.BatchNormalization)]
        if not norms:
            return self.params
        deepest = math.prod(-(-extent // _DEEPEST_STRIDE) for extent in self.image_shape[:2])
        batch = -(-_CALIBRATION_PIXELS // deepest)
        momenta = [layer.momentum for layer in norms]

        @jax.jit
        def measure(params: Params, images: jax.Array) -> list[jax.Array]:
            return self._keras_model.stateless_call(*params, images, training=True)[1]

        try:
            for layer in norms:
                layer.momentum = 0.0  # this batch only
            return self.params[0], measure(self.params, self.random_images(batch))
        finally:
            for layer, momentum in zip(norms, momenta, strict=True):
                layer.momentum = momentum


def keras_application(name: str, image_size: int | None = None) -> KerasApplication:
    """Build a model.

    Args:
        name: such as ResNet50.
        image_size: height and width of the images; the model's own by default, 224 where it takes any.

    Raises:
        InputError: there is no such model, or it does not take images of that size.
        AspenError: Keras is not installed or runs on another backend already.
    """
    applications = _keras().applications
    known = sorted(item for item in dir(applications) if item[0].isupper())
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise InputError(f"keras.applications has no model {name!r}; did you mean {', '.join(close)}?")
    constructor = getattr(applications, name)
    _keras().utils.set_random_seed(_SEED)
    try:
        model = constructor(weights=None, input_shape=None if image_size is None else (image_size, image_size, 3))
    except ValueError as error:
        raise InputError(f"{name} cannot be built for images of {image_size} pixels: {error}; take another size") from error

    def predict(params: Any, image: jax.Array) -> jax.Array:
        return model.stateless_call(*params, image, training=False)[0]

    params = (_values(model.trainable_variables), _values(model.non_trainable_variables))
    preprocess = sys.modules[constructor.__module__].preprocess_input
    height, width, channels = model.input_shape[1:]
    return KerasApplication(name, predict, params, (height or _PIXELS, width or _PIXELS, channels), preprocess, model)


def _values(variables: Iterable[Any]) -> list[jax.Array]:
    return [variable.value for variable in variables]


def _keras() -> Any:
    os.environ["KERAS_BACKEND"] = "jax"  # Keras reads it when it is first imported
    try:
        import keras
    except ImportError as error:
        raise missing(error) from error
    if keras.backend.backend() != "jax":
        raise AspenError(f"Keras runs on {keras.backend.backend()} in this process; set KERAS_BACKEND=jax before it is imported")
    return keras


def missing(error: ImportError) -> AspenError:
    """The error for a package that only demo and benchmarks need."""
    return AspenError(f"a package of the extra 'demo' is missing ({error}); pip install 'aspen_jax[demo]'")
