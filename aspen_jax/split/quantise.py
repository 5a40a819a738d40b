"""Fewer bits for a tensor that crosses a link: ISQuant, linear codes over the range of this tensor alone (DynO, section 3.3)."""

from __future__ import annotations

import dataclasses
import operator

import numpy as np
from numpy.typing import ArrayLike

from aspen_jax.errors import InputError
from aspen_jax.ir.dtypes import DTYPES

RAW = 32
"""Instead of a number of bits: values travel as they are."""
MAX_BITS = 16

# What codes are computed in. Floats of 16 bits are widened, so that rounding counts little beside half a step.
_COMPUTED_IN = {dtype: np.dtype(np.float64 if dtype.itemsize == 8 else np.float32) for dtype in DTYPES if dtype.kind in "fV"}
# Half of the largest float, and the smallest normal one; as numbers of Python, which compare faster than NumPy's.
_LIMITS = {
    dtype: (float(np.finfo(dtype).max) / 2, float(np.finfo(dtype).smallest_normal)) for dtype in set(_COMPUTED_IN.values())
}


@dataclasses.dataclass(frozen=True, eq=False)
class Quantised:
    """A tensor as codes: its values are `minimum + codes * scale`.

    Attributes:
        codes: uint8 up to 8 bits, uint16 above, of the tensor's shape. The tensor itself where `bits` is `RAW`.
        scale: The step between two codes; 0 for a constant tensor.
        minimum: The value of code 0.
        bits: Bits of a code, 1 to 16, or `RAW`.
        dtype: The tensor's dtype.
    """

    codes: np.ndarray
    scale: float
    minimum: float
    bits: int
    dtype: np.dtype


def computed_in(dtype: np.dtype) -> np.dtype | None:
    """The dtype in which codes of a float dtype are computed; None for a dtype that always travels raw."""
    return _COMPUTED_IN.get(dtype)


def code_dtype(bits: int) -> np.dtype:
    return np.dtype(np.uint8 if bits <= 8 else np.uint16)


def checked_bits(bits: int | None) -> int:
    """A number of bits as `quantise` takes it; None means `RAW`.

    Raises:
        InputError: It is neither 1 to 16 nor `RAW`.
    """
    if bits is None:
        return RAW
    try:
        number = operator.index(bits)
    except TypeError:
        number = 0
    if isinstance(bits, bool | np.bool_) or not (1 <= number <= MAX_BITS or number == RAW):
        raise InputError(f"bits = {bits!r} is no number of bits. Use 1 to {MAX_BITS}; {RAW} or None for values as they are")
    return number


def quantise(x: ArrayLike, bits: int | None) -> Quantised:
    """Codes of `bits` bits, linear between the least and the largest value of `x`.

    With `step = (max - min) / (2**bits - 1)`, `dequantise` gives each value back within `step * (1/2 + 2**(bits - 22))` and one
    unit in the last place of `max(|min|, |max|)` in x's dtype. (For float64 it is 2**(bits - 51).) A constant tensor comes back
    exactly, but a mixture of 0.0 and -0.0 takes the sign of the first.

    These travel raw, and so cost their full size: integers, bools, complex numbers; empty tensors; a tensor with a NaN or an
    infinity, of which every value then stays as it is; ranges or values beyond half of the largest float; steps below the
    smallest normal float.

    Args:
        x: An array of any shape and dtype.
        bits: 1 to 16; `RAW` or None for values as they are.

    Raises:
        InputError: `bits` is neither.
    """
    x, bits = np.asarray(x), checked_bits(bits)
    raw = Quantised(x, 0.0, 0.0, RAW, x.dtype)
    computed = computed_in(x.dtype)
    if bits == RAW or computed is None or x.size == 0:
        return raw
    wide = x.astype(computed, copy=False)
    low, high = float(np.minimum.reduce(wide, axis=None)), float(np.maximum.reduce(wide, axis=None))
    (most, least_normal), levels = _LIMITS[computed], 2**bits - 1
    # A NaN or an infinity reaches low or high, so that no other look at the values is needed.
    if not (abs(low) <= most and abs(high) <= most and high - low <= most):
        return raw
    if low == high:
        return Quantised(np.zeros(x.shape, code_dtype(bits)), 0.0, float(wide.flat[0]), bits, x.dtype)
    scale = float(computed.type((high - low) / levels))
    if scale < least_normal:
        return raw
    shifted = wide if low == 0 else wide - computed.type(low)  # 0 is what a ReLU gives
    codes = np.divide(shifted, computed.type(scale))  # not times 1 / scale: that may overflow, and rounds once more
    codes += computed.type(0.5)
    return Quantised(codes.astype(code_dtype(bits)), scale, low, bits, x.dtype)


def dequantise(q: Quantised) -> np.ndarray:
    """The tensor that codes stand for, of shape `q.codes.shape` and dtype `q.dtype`. A raw one comes back without a copy."""
    if q.bits == RAW:
        return q.codes
    computed = computed_in(q.dtype)
    assert computed is not None, q.dtype
    if q.scale == 0:
        return np.full(q.codes.shape, q.minimum, q.dtype)
    values = q.codes.astype(computed)
    values *= computed.type(q.scale)
    if q.minimum != 0:
        values += computed.type(q.minimum)
    with np.errstate(over="ignore"):  # a peer may send a range that float16 does not hold
        return values.astype(q.dtype, copy=False)
