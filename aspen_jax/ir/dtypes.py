"""The element types that tiles can hold, numbered as in the graph format (`engine/kernel.h`)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

DTYPES: tuple[np.dtype, ...] = (
    *map(np.dtype, ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16")),
    np.dtype(jnp.bfloat16),
    *map(np.dtype, ("float32", "float64")),
)

DTYPE_NUMBERS: dict[np.dtype, int] = {dtype: number for number, dtype in enumerate(DTYPES)}
