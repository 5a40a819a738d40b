"""Numbers for a value, to time what reads it."""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Value


def random_array(value: Value, number: int = 0) -> np.ndarray:
    """Numbers that no kernel is slow at, others for each number; indices into the first rows of what they index."""
    random = np.random.default_rng((value.size, number))
    if np.issubdtype(value.dtype, np.integer) or value.dtype == np.bool_:
        return random.integers(0, 2, value.shape).astype(value.dtype)
    return (random.random(value.shape, np.float32) - 0.5).astype(value.dtype)
