"""How far two results are apart."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np


def largest_difference(actual: Any, expected: Any) -> float:
    """The largest difference between two pytrees of arrays, as a share of the largest expected output.

    Each array is measured on its own and the worst one counts. Infinities and NaNs must stand in the same places.

    Returns:
        0 if the two are equal; infinity if trees, shapes or dtypes differ, or where only one side is finite.
    """
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        return math.inf
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max((_difference(np.asarray(a), np.asarray(b)) for a, b in pairs), default=0.0)


def _difference(actual: np.ndarray, expected: np.ndarray) -> float:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    actual, expected = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(actual), finite) or not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return math.inf
    actual, expected = actual[finite], expected[finite]
    return float(np.abs(actual - expected).max(initial=0)) / (float(np.abs(expected).max(initial=0)) or 1.0)
