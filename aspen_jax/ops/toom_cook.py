"""Minimal filtering along one axis, as Toom and Cook multiply polynomials (cpu/toom_cook.h has the other transforms)."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np

# In this order, and infinity after them. Small fractions lose the fewest digits.
POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "3/2", "-3/2", "2/3", "-2/3")))


@functools.cache
def weight_transform(outputs: int, taps: int) -> np.ndarray:
    """Values of the weights' polynomial at each of outputs + taps - 1 points, over what the inputs' polynomials are there."""
    points = POINTS[: outputs + taps - 2]
    matrix = np.zeros((len(points) + 1, taps))
    for row, point in zip(matrix, points, strict=False):
        scale = Fraction(1)
        for other in points:
            scale *= 1 if other == point else point - other
        row[:] = [float(point**power / scale) for power in range(taps)]
    matrix[-1, -1] = 1
    return matrix
