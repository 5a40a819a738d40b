"""Rates of amounts of work from timed parts: those under which predicted and measured times differ by the smallest factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from scipy import optimize

from aspen_jax.lowering.choice import Rates
from benchmarks.chooser.timing import Sample

# A factor that is so far off, as a logarithm, counts no longer with its square: some times were disturbed.
_OUTLIER = 0.3

# Where XLA's time is predicted too long, tiles may be chosen wrongly. That error counts so many times as much. The same small
# part takes XLA 9 or 30 microseconds, as JAX waits for another thread or not.
_WRONG = 1.3
# Each fit says which times it predicts too long; the next one weighs them.
_PASSES = 6


def fitted(samples: Sequence[Sample]) -> Rates:
    """The rates that fit the samples' times; amounts that no sample has get none."""
    xla = _fitted([sample.xla for sample in samples], [sample.xla_ns for sample in samples], too_long=_WRONG)
    tiles = _fitted([sample.tiles for sample in samples], [sample.tiles_ns for sample in samples])
    return Rates(xla, tiles)


def _fitted(amounts: Sequence[Mapping[str, float]], times: Sequence[float], too_long: float = 1.0) -> dict[str, float]:
    names = sorted({name for of_sample in amounts for name, amount in of_sample.items() if amount > 0})
    table = np.array([[of_sample.get(name, 0.0) for name in names] for of_sample in amounts])
    measured = np.asarray(times)
    # Each column in units of the rate that would explain a tenth of a typical sample's time, so that steps are alike.
    share = table / measured[:, None]
    scale = 0.1 / np.array([np.median(column[column > 0]) for column in share.T])
    scaled = share * scale
    rates = optimize.nnls(scaled, np.ones(len(measured)))[0] + 1e-3
    weights = np.ones(len(measured))
    for _ in range(_PASSES):

        def errors(unknown: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
            return weights * np.log(scaled @ unknown + 1e-9)

        def slopes(unknown: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
            return (weights / (scaled @ unknown + 1e-9))[:, None] * scaled

        rates = optimize.least_squares(
            errors, rates, jac=cast(Any, slopes), bounds=(0, np.inf), loss="soft_l1", f_scale=_OUTLIER, max_nfev=400
        ).x
        weights = np.where(scaled @ rates > 1, too_long, 1.0)
    return {name: float(f"{rate:.4g}") for name, rate in zip(names, rates * scale, strict=True)}
