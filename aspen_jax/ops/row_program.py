"""Row programs: what is computed along rows, each of which is reduced on the way (softmax, layer norm, logsumexp, ...).

A row program is a list of stages. A stage is a block program over the inputs and the results of earlier stages, and what becomes
of it: reduced along the row to a number, kept for each element of the row, or itself computed once a row. The last is the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.dtypes import DTYPE_NUMBERS, DTYPES
from aspen_jax.ops import windows
from aspen_jax.ops.block_program import BlockProgram

if TYPE_CHECKING:
    from aspen_jax.ops.attrs import Words

# Kinds of a stage beside those of a reduction (windows.py).
ROW, NUMBER = 4, 5

MAX_REGISTERS = 64  # inputs and stages of a program


class Stage(NamedTuple):
    """One stage.

    Attributes:
        kind: a reduction (windows.py); ROW: a value for each element; NUMBER: a value for each row, computed from such values.
        dtype: of the result; that of the last stage is the output's, others are float32 or int32.
        program: over the inputs, then the results of the stages before.
    """

    kind: int
    dtype: np.dtype
    program: BlockProgram


@dataclasses.dataclass(frozen=True)
class RowProgram:
    """A list of stages.

    Attributes:
        num_inputs: number of inputs, each of the shape of the rows.
        stages: at least one; the last is of kind ROW or NUMBER, and each other is read by a later one.
    """

    num_inputs: int
    stages: tuple[Stage, ...]

    @property
    def gives_rows(self) -> bool:
        """Whether the result has a value for each element of a row, not one for each row."""
        return self.stages[-1].kind == ROW

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the result."""
        return self.stages[-1].dtype

    def stored_as(self, dtype: np.dtype) -> RowProgram:
        """The same with a result of another dtype of the same lanes."""
        *others, last = self.stages
        return dataclasses.replace(self, stages=(*others, last._replace(dtype=dtype)))

    def to_words(self) -> list[int]:
        words = [len(self.stages)]
        for kind, dtype, program in self.stages:
            words += [kind, DTYPE_NUMBERS[dtype], *program.to_words()]
        return words

    @classmethod
    def from_words(cls, words: Words) -> RowProgram:
        count = words.integer()
        if not 1 <= count <= MAX_REGISTERS:
            raise ValueError(f"a row program of {count} stages")
        stages = []
        for _ in range(count):
            kind, dtype = words.integer(), words.integer()
            if not 0 <= kind <= NUMBER or not 0 <= dtype < len(DTYPES):
                raise ValueError(f"a stage of kind {kind} and dtype number {dtype}")
            stages.append(Stage(kind, DTYPES[dtype], BlockProgram.from_words(words)))
        num_inputs = stages[0].program.num_inputs
        if any(stage.program.num_inputs != num_inputs + index for index, stage in enumerate(stages)) or kind < ROW:
            raise ValueError("malformed row program")
        return cls(num_inputs, tuple(stages))

    def reference(self, inputs: Sequence[jax.Array], axes: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
        """The same in jax.lax, along the axes of inputs of one shape."""
        kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
        known = list(inputs)
        for kind, dtype, program in self.stages:
            own = kept if kind == NUMBER else shape
            read = [lax.slice(x, (0,) * x.ndim, kept) if own == kept else jnp.broadcast_to(x, own) for x in known]
            result = program.reference(*read, shape=own, dtype=dtype)
            if kind < ROW:
                start = windows.identity(kind, np.dtype(result.dtype))
                result = lax.reduce(result, start, windows.COMBINE[kind], axes).reshape(kept)
            known.append(result)
        return known[-1] if self.gives_rows else lax.squeeze(known[-1], axes)

    def __str__(self) -> str:
        names = ("sum", "max", "min", "product", "row", "number")
        return "[" + ", ".join(f"{names[kind]}{program}" for kind, _, program in self.stages) + "]"
