"""Kinds of reduction, shared by pooling windows and whole-axis reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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


def lie_alike(
    whole: tuple[Sequence[int], Sequence[int]],
    part: tuple[Sequence[int], Sequence[int]],
    strides: Iterable[int],
    dilation: Iterable[int],
) -> bool:
    """Whether windows lie in each of some equal parts of a tensor as in the first, along each axis.

    At the ends of the tensor padding takes the place of neighbours, so two parts may read alike and yet differ.

    Args:
        whole: extents of what has the windows, and of the tensor.
        part: the same of a part.
        strides: elements of the dilated tensor from window to window.
        dilation: elements of the dilated tensor from element to element.
    """
    extents = zip(*whole, *part, strict=True)
    return all(
        (windows, tensor) == (some, own) or (windows * own == some * tensor and some * stride == own * step)
        for (windows, tensor, some, own), stride, step in zip(extents, strides, dilation, strict=True)
    )
