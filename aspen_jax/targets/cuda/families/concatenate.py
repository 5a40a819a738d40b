"""Concatenation (cuda/kernels/concatenate.h)."""

from __future__ import annotations

import dataclasses
import itertools

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes
from aspen_jax.targets.cuda.code.runs import is_run, run_length


@dataclasses.dataclass(frozen=True)
class ConcatenateShape:
    """How pieces lie one after the other, as ConcatenateShape in cuda/kernels/concatenate.h.

    Attributes:
        axis: along which the pieces lie.
        run: adjacent elements that a thread moves at once.
    """

    axis: int
    run: int

    @classmethod
    def of(cls, op: Op) -> ConcatenateShape:
        axis, last = op.attrs.axis, len(op.output.shape) - 1
        pieces, run = range(len(op.main_inputs)), run_length(op, op.main_inputs[0].dtype)

        def are_runs() -> bool:
            """Whether no run of so many lies in two pieces, and all may be read at once."""
            is_whole = axis < last or all(begin % run == 0 for begin in begins(op))
            return is_whole and all(is_run(op, number, last, run) for number in pieces)

        while run > 1 and not are_runs():
            run //= 2
        return cls(axis, run)


def begins(op: Op) -> list[int]:
    """Where each piece begins along the axis."""
    return [0, *itertools.accumulate(piece.shape[op.attrs.axis] for piece in op.main_inputs)][:-1]


@writes("concatenate")
def _concatenate(op: Op) -> Kernel:
    shape = ConcatenateShape.of(op)
    pieces = [
        f"Piece<{begin}, {begin + piece.shape[shape.axis]}, {input_type(op, number)}>"
        for number, (begin, piece) in enumerate(zip(begins(op), op.main_inputs, strict=True))
    ]
    return Kernel("Concatenate", [constant(shape), *pieces], run=shape.run)
