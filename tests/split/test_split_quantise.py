"""ISQuant: the error's bound, and the tensors that have no range."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aspen_jax.errors import InputError
from aspen_jax.split.quantise import RAW, dequantise, quantise
from tests.content import generator

FLOATS = [np.dtype(name) for name in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
RNG = generator(__name__)


def unit(values: np.ndarray) -> float:
    """One unit in the last place of the largest value, in the values' dtype."""
    largest = np.abs(values.astype(np.float64)).max()
    return float(2.0 ** np.floor(np.log2(largest)) * float(ml_dtypes.finfo(values.dtype).eps))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_error_is_at_most_half_a_step(dtype, bits):
    for shape, scale, offset in [((7, 5, 3), 1, 0), ((2,), 1e-3, 1), ((4, 999), 1e4, -3), ((50,), 30, 2000)]:
        x = (RNG.normal(size=shape) * scale + offset).astype(dtype)
        q = quantise(x, bits)
        y = dequantise(q)
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert q.codes.dtype == (np.uint8 if bits <= 8 else np.uint16)
        assert q.codes.max() <= 2**bits - 1
        wide = x.astype(np.float64)
        step = (wide.max() - wide.min()) / (2**bits - 1)
        rounding = 2.0 ** (bits - (51 if dtype.itemsize == 8 else 22))
        assert np.abs(y.astype(np.float64) - wide).max() <= step * (0.5 + rounding) + unit(x)
        if step > 4 * unit(x):  # both ends have a code of their own
            assert q.codes.flat[wide.argmin()] == 0
            assert q.codes.flat[wide.argmax()] == 2**bits - 1


def test_zeros_of_a_relu_stay_zeros():
    x = np.maximum(RNG.normal(size=(3, 800)), 0).astype(np.float32)
    y = dequantise(quantise(x, 3))
    assert not y[x == 0].any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3e-5, 60000.0])
def test_a_constant_tensor_is_exact(dtype, value):
    for shape in [(), (1,), (4, 5)]:
        x = np.full(shape, value, dtype)
        assert dequantise(quantise(x, 1)).tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((0, 3), np.float32),
        np.array([1, np.nan, 2], np.float32),
        np.array([np.inf, -np.inf, 1.25]),
        np.full((3, 3), np.nan, ml_dtypes.bfloat16),
        np.full(4, -np.inf, np.float16),
        np.array([3e38, -3e38], np.float32),  # the range is no float32
        np.array([1e308, -1e308, 0.1]),
        np.array([0, 1e-45, 3e-45], np.float32),  # the step is no normal number
        np.arange(-3, 4),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
    ids=lambda x: str(x).replace("\n", ""),
)
def test_what_has_no_range_travels_raw(x):
    q = quantise(x, 4)
    assert q.bits == RAW
    assert dequantise(q).tobytes() == x.tobytes()


def test_raw_is_asked_for_by_none_or_32():
    x = RNG.normal(size=9)
    for bits in (None, 32, np.int64(32)):
        assert dequantise(quantise(x, bits)).tobytes() == x.tobytes()


@pytest.mark.parametrize("bits", [0, 17, -1, 31, 64, True, 4.0, "4"])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises(InputError, match="Use 1 to 16"):
        quantise(np.ones(3), bits)
