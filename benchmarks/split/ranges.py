"""DynO's figure 5: the largest value of each image's tensors, beside what calibration sets lead to expect of it."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.split.packing import relu_batches
from benchmarks.split.trained import Trained

SETS = 20  # disjoint, and so of 5% of the images each, as in the paper


@dataclasses.dataclass(frozen=True, eq=False)
class Ranges:
    """Outputs of a network's ReLUs.

    Attributes:
        largest: float64 [images, tensors], the largest value of each.
        estimates: float64 [SETS, tensors], its mean over the images of a calibration set.
    """

    largest: np.ndarray
    estimates: np.ndarray

    @property
    def beyond(self) -> np.ndarray:
        """The share of images with a value beyond the estimate, mean over calibration sets, float64 [tensors]."""
        return (self.largest[None] > self.estimates[:, None]).mean(axis=(0, 1))


def ranges(trained: Trained, images: int) -> Ranges:
    """Measures a network on so many images, at least `SETS`."""
    values = relu_batches(trained, images)
    largest = np.stack([value.reshape(len(value), -1).max(axis=1) for value in values], axis=1).astype(np.float64)
    order = np.random.default_rng(0).permutation(len(largest))
    return Ranges(largest, np.stack([largest[part].mean(axis=0) for part in np.array_split(order, SETS)]))
