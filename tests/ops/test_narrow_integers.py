"""Integers of 8 and 16 bits lie in lanes of 32 bits: what reads a result sees the value that would be stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import aspen
from tests.content import seed_of

DTYPES = [np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")]


def _without_zero(y: Any) -> Any:
    return jnp.where(y == 0, jnp.ones_like(y), y)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "negative": lambda x, y: -x,
    "not": lambda x, y: ~x,
    "xor": lambda x, y: x ^ ~y,
    "shift left": lambda x, y: lax.shift_left(x, jnp.clip(y, 0, 7)),
    "arithmetic shift": lambda x, y: lax.shift_right_arithmetic(~x, jnp.clip(y, 0, 7)),
    "logical shift": lambda x, y: lax.shift_right_logical(~x, jnp.clip(y, 0, 7)),
    "abs": lambda x, y: jnp.abs(x),
    "sign": lambda x, y: jnp.sign(x),
    "div": lambda x, y: lax.div(x, _without_zero(y)),
    "rem": lambda x, y: lax.rem(x, _without_zero(y)),
    "floor division": lambda x, y: x // _without_zero(y),
    "cube": lambda x, y: lax.integer_pow(x, 3),
    "clamp": lambda x, y: lax.clamp(jnp.minimum(x, y), ~x, jnp.maximum(x, y)),
    "select": lambda x, y: jnp.where(x > y, x, ~y),
    "cumulative sum": lambda x, y: jnp.cumsum(x, 0, dtype=x.dtype),
    "sum": lambda x, y: x + jnp.sum(x, 0, dtype=x.dtype),
    "scatter": lambda x, y: x.at[jnp.array([0, 0, 1])].add(y[:3]),
    "positions": lambda x, y: lax.broadcasted_iota(x.dtype, x.shape, 1) * y,
    "of floats": lambda x, y: (x.astype(jnp.float32) * 3.7).astype(x.dtype),
    "of bools": lambda x, y: (x > y).astype(x.dtype) - jnp.ones((), x.dtype),
}


def _of(dtype: np.dtype) -> dict[str, Callable[[Any, Any], Any]]:
    """The operations on a dtype, its bits and conversions among them."""
    others = [other for other in DTYPES if other != dtype]
    bits = {f"bits as {t}": lambda x, y, t=t: lax.bitcast_convert_type(x, t) for t in others if t.itemsize == dtype.itemsize}
    return {**OPERATIONS, **bits, **{f"as {t}": lambda x, y, t=t: x.astype(t) for t in others}}


def _readers(z: Any, y: Any) -> list[Any]:
    """What tells a lane's value from what would be stored of it."""
    return [z > y.astype(z.dtype), z.astype(jnp.float32), lax.shift_right_logical(z, jnp.ones_like(z)), lax.clz(z)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["forced", "default"])
def test_readers_see_what_would_be_stored(dtype, mode, request):
    if mode == "default":
        request.getfixturevalue("choosing")
    rng = np.random.default_rng(seed_of(f"narrow integers {dtype}"))
    info = np.iinfo(dtype)
    shape = (5, 33) if mode == "forced" else (64, 2048)
    x, y = (rng.integers(info.min, info.max, shape, dtype, endpoint=True) for _ in range(2))
    x[0, :3] = info.min, info.max, 0

    def function(x, y):
        return {name: _readers(operation(x, y), y) for name, operation in _of(dtype).items()}

    ours, theirs = aspen(function)(x, y), jax.jit(function)(x, y)
    for name, results in ours.items():
        for number, (found, wanted) in enumerate(zip(results, theirs[name], strict=True)):
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name}, reader {number}")
