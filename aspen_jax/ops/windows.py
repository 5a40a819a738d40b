"""Kinds of reduction, shared by pooling windows and whole-axis reductions."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

SUM, MAX, MIN, PRODUCT = range(4)
AND, OR, XOR = range(4, 7)  # bitwise, of whole axes alone

COMBINE: tuple[Callable[[jax.Array, jax.Array], jax.Array], ...] = (
    lax.add, lax.max, lax.min, lax.mul, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor,
)  # fmt: skip


def identity(kind: int, dtype: np.dtype) -> np.ndarray:
    """The element that changes nothing."""
    if kind in (SUM, PRODUCT):
        return np.array(kind == PRODUCT, dtype)
    if kind in (AND, OR, XOR):
        return np.array(-(kind == AND), dtype)
    if dtype == np.bool_:
        return np.array(kind == MIN, dtype)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return np.array(limits.min if kind == MAX else limits.max, dtype)
    return np.array(-np.inf if kind == MAX else np.inf, dtype)
