"""How many adjacent elements may be read at once."""

from __future__ import annotations

from typing import Any

import numpy as np


def vector(dtype: np.dtype, *multiples: int, most: int = 16) -> int:
    """The most elements, of `most` bytes or fewer, of which all these numbers of elements are multiples."""
    for nbytes in (16, 8, 4, 2):
        count = nbytes // dtype.itemsize
        if nbytes <= most and count and all(number % count == 0 for number in multiples):
            return count
    return 1


def whole(extents: Any, unit: int) -> Any:
    """Extents, ints or arrays of them, in whole units."""
    return -(-extents // unit) * unit


# Bytes that warpgroups read of a line of an operand (Swizzle in cuda/kernels/warpgroup_mma.h).
LINE_BYTES = 128

# What C++ calls elements of a dtype of floats (cuda/kernels/tile.h, cuda/kernels/warp_mma.h).
STORED = {"float32": "Plain<uint32_t>", "bfloat16": "BFloat16", "float16": "Float16"}
KINDS = {"float32": "Tf32", "bfloat16": "Bf16", "float16": "F16"}
ROUNDED_KIND = "RoundedTf32"
ELEMENTS = {"float32": "float", "bfloat16": "uint16_t", "float16": "uint16_t"}
