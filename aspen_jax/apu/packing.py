"""Small constants side by side in one array: XLA spends 0.5 to 0.7 microseconds of every call on each operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aspen_jax.apu.memory import ALIGNMENT
from aspen_jax.ir.program import Value

# Larger ones are not worth a copy.
_LARGEST_BYTES = 1 << 20


class Packed(NamedTuple):
    """Constants as operands of a call.

    Attributes:
        constants: the values with their arrays, which are parts of the operands' arrays.
        operands: a value and an array for each operand; a new value where several constants share it.
        places: the operand of each constant, and the byte at which it begins there.
    """

    constants: tuple[tuple[Value, np.ndarray], ...]
    operands: tuple[tuple[Value, np.ndarray], ...]
    places: dict[Value, tuple[int, int]]


def pack(constants: Sequence[tuple[Value, np.ndarray]]) -> Packed:
    """Put small constants of the same dtype side by side; those that lie so already are left where they are."""
    groups: dict[Value | np.dtype, list[Value]] = {}
    for value, _ in constants:
        groups.setdefault(value.dtype if 0 < value.nbytes <= _LARGEST_BYTES else value, []).append(value)
    arrays = dict(constants)
    operands: list[tuple[Value, np.ndarray]] = []
    places: dict[Value, tuple[int, int]] = {}
    for values in groups.values():
        dtype = values[0].dtype
        step = ALIGNMENT // dtype.itemsize
        starts = np.cumsum([0, *(-(-value.size // step) * step for value in values)]).tolist()
        places.update((value, (len(operands), start * dtype.itemsize)) for value, start in zip(values, starts, strict=False))
        if len(values) == 1:
            operands.append((values[0], arrays[values[0]]))
            continue
        whole = _beneath([arrays[value] for value in values], starts)
        if whole is None:
            whole = np.zeros(starts[-1], dtype)
            for value, start in zip(values, starts, strict=False):
                part = whole[start : start + value.size].reshape(value.shape)
                part[...] = arrays[value]
                arrays[value] = part
        operands.append((Value(whole.shape, dtype), whole))
    return Packed(tuple(arrays.items()), tuple(operands), places)


def _beneath(parts: Sequence[np.ndarray], starts: Sequence[int]) -> np.ndarray | None:
    """The array whose parts from these elements on are the given ones, if that is what they are."""
    whole = parts[0].base
    if not isinstance(whole, np.ndarray) or whole.shape != (starts[-1],) or whole.dtype != parts[0].dtype:
        return None
    for part, start in zip(parts, starts, strict=False):
        if part.base is not whole or not part.flags.c_contiguous or part.ctypes.data != whole[start:].ctypes.data:
            return None
    return whole
