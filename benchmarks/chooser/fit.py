"""Rates of amounts of work from timed parts: those under which predicted and measured times differ by the smallest factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from scipy import optimize

from aspen_jax.targets.cpu.choice import Rates
from benchmarks.chooser.timing import Sample

# A factor that is so far off, as a logarithm, counts no longer with its square: some times were disturbed.
_OUTLIER = 0.3

# Where XLA's time is predicted too long, tiles may be chosen wrongly. That error counts so many times as much. The same small
# part takes XLA 9 or 30 microseconds, as JAX waits for another thread or not.
_WRONG = 1.3
# Each fit says which times it predicts too long; the next one weighs them.
_PASSES = 6

# Some amounts are in few parts, or a small share of their time. So a rate stays near the known one, but for a factor that is
# common to all: the logarithm of what it differs by counts like the error of a sample, times this. docs/results/choice.md says
# what that gains.
_NEAR_KNOWN = 0.3
# A known rate of nothing says that samples were too few. It counts as at least this share of a typical sample's time.
_LEAST_SHARE = 0.02
_TYPICAL_SHARE = 0.1


def fitted(samples: Sequence[Sample], known: Rates) -> Rates:
    """The rates that fit the samples' times and are not far from known ones; amounts that no sample has get none.

    Args:
        samples: timed parts.
        known: rates of another machine, or an older fit of this one. They may lack amounts.
    """
    xla = _fitted([sample.xla for sample in samples], [sample.xla_ns for sample in samples], known.xla, too_long=_WRONG)
    tiles = _fitted([sample.tiles for sample in samples], [sample.tiles_ns for sample in samples], known.tiles)
    return Rates(xla, tiles)


def _fitted(
    amounts: Sequence[Mapping[str, float]], times: Sequence[float], known: Mapping[str, float], too_long: float = 1.0
) -> dict[str, float]:
    names = sorted({name for of_sample in amounts for name, amount in of_sample.items() if amount > 0})
    share = np.array([[of_sample.get(name, 0.0) for name in names] for of_sample in amounts]) / np.asarray(times)[:, None]
    whole = 1 / np.array([np.median(column[column > 0]) for column in share.T])  # the rate that explains all of a typical sample
    expected = np.array([known.get(name, _TYPICAL_SHARE * rate) for name, rate in zip(names, whole, strict=True)])
    expected = np.maximum(expected, _LEAST_SHARE * whole)
    scaled = share * expected
    weights = np.ones(len(times))

    # Unknown are the logarithms of each rate's own factor, and of the common one.
    def parts(unknown: np.ndarray) -> np.ndarray:
        return scaled * np.exp(unknown[:-1] + unknown[-1])

    def errors(unknown: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * np.log(parts(unknown).sum(1)), _NEAR_KNOWN * unknown[:-1]])

    def slopes(unknown: np.ndarray) -> np.ndarray:
        of_parts = parts(unknown)
        of_samples = (weights / of_parts.sum(1))[:, None] * np.column_stack([of_parts, of_parts.sum(1)])
        return np.vstack([of_samples, _NEAR_KNOWN * np.eye(len(names), len(names) + 1)])

    unknown = np.zeros(len(names) + 1)
    for _ in range(_PASSES):
        unknown = optimize.least_squares(errors, unknown, jac=cast(Any, slopes), loss="soft_l1", f_scale=_OUTLIER, max_nfev=400).x
        weights = np.where(parts(unknown).sum(1) > 1, too_long, 1.0)
    rates = expected * np.exp(unknown[:-1] + unknown[-1])
    return {name: float(f"{rate:.4g}") for name, rate in zip(names, rates, strict=True)}
