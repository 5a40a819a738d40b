"""TF32, what tensor cores read of float32: sign, exponent and 10 bits of fraction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op, Value

_INFINITY = 0x7F800000
_DROPPED = 0x1FFF


class RoundedInput(NamedTuple):
    """An input of an op that is best rounded to TF32 beforehand.

    Attributes:
        number: of the input.
        order: how it is best stored: dimension i is dimension order[i] of the input.
    """

    number: int
    order: tuple[int, ...]


def rounded(array: np.ndarray) -> np.ndarray:
    """The nearest numbers of TF32, halves away from zero (`cvt.rna.tf32.f32`); infinities as they are.

    Args:
        array: float32.

    Returns:
        float32, the last 13 bits of whose elements are zero.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = np.where(bits & _INFINITY == _INFINITY, bits, bits + np.uint32((_DROPPED + 1) // 2)) & np.uint32(
        ~_DROPPED & 0xFFFFFFFF
    )
    # Of a NaN the bits that are left might all be zero.
    return np.where(np.isnan(array), np.float32(np.nan), nearest.view(np.float32))


def with_rounded(op: Op, number: int, value: Value, order: Sequence[int]) -> Op:
    """A product or convolution whose input `number` is a rounded value.

    Args:
        op: it reads that input as float32, and rounds it.
        number: of the input.
        value: its elements, rounded; dimension i is dimension order[i] of the input.
        order: a permutation.
    """
    from aspen_jax.ir.program import Operand

    inputs = list(op.inputs)
    inputs[number] = Operand.permuted(value, order)
    return op.replace(inputs=tuple(inputs), rounded=True)
