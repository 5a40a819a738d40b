"""The one table from JAX primitive to op. Each op module adds its own entries with `@converts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.ir.program import Operand
from aspen_jax.ops.builder import Builder


class Unsupported(Exception):
    """An equation that no tile kernel can run; it stays with XLA. The message is the reason that `explain` prints."""


class Equation(NamedTuple):
    """What a converter may know of a jaxpr equation besides its operands.

    Attributes:
        primitive: the primitive's name.
        params: its parameters.
        outputs: (shape, dtype) of each output.
        arrays: for each operand, its value where it is known when tracing, else None.
    """

    primitive: str
    params: Mapping[str, Any]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype]]
    arrays: Sequence[np.ndarray | None]

    @property
    def scalars(self) -> list[np.ndarray | None]:
        """The value of each operand that is a scalar known when tracing; None for the others."""
        return [array if array is not None and array.ndim == 0 else None for array in self.arrays]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.outputs[0][0]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the first output."""
        return self.outputs[0][1]


Converter = Callable[..., Operand | Sequence[Operand]]

CONVERTERS: dict[str, Converter] = {}


def converts(*primitives: str) -> Callable[[Converter], Converter]:
    """Register `convert(build: Builder, equation: Equation, *operands: Operand)` for primitives, by their names.

    It gives an operand for each output, or raises `Unsupported` where XLA has to run the equation.

    Raises:
        InputError: there are no names, or a primitive has a converter.
    """
    if not primitives or not all(isinstance(primitive, str) for primitive in primitives):
        raise InputError(f'converts takes names of primitives, such as @converts("sort"), not {primitives}')

    def register(converter: Converter) -> Converter:
        for primitive in primitives:
            if primitive in CONVERTERS:
                raise InputError(f"the primitive {primitive!r} becomes an op already; convert one of another name")
        CONVERTERS.update(dict.fromkeys(primitives, converter))
        return converter

    return register


def need_dtypes(equation: Equation, operands: Sequence[Operand], *names: str) -> None:
    """Refuse operands and outputs of other dtypes.

    Raises:
        Unsupported: a dtype is not among `names`.
    """
    for dtype in [*(operand.dtype for operand in operands), *(dtype for _, dtype in equation.outputs)]:
        if np.dtype(dtype).name not in names:
            raise Unsupported(
                f"no tile kernel for {equation.primitive} of {np.dtype(dtype).name}; kernels take {', '.join(names)}"
            )


__all__ = ["CONVERTERS", "Builder", "Converter", "Equation", "Unsupported", "converts", "need_dtypes"]
