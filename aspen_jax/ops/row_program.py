"""Row programs: what is computed along rows, each of which is reduced on the way (softmax, layer norm, logsumexp, ...).

A row program is a list of stages. A stage is a block program over the inputs and the results of earlier stages, and what becomes
of it: reduced along the row to a number, kept for each element of the row, or itself computed once a row. The last is the result;
others of its kind may be stored beside it.
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

# Added to the kind of a stage that is stored in an output beside the last one's.
_STORED = 8

MAX_REGISTERS = 64  # inputs and stages of a program


class Stage(NamedTuple):
    """One stage.

    Attributes:
        kind: a reduction (windows.py); ROW: a value for each element; NUMBER: a value for each row, computed from such values.
        dtype: of the result; that of a stored stage is its output's, others are float32 or int32.
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
        stages: at least one; the last is of kind ROW or NUMBER, and each other is read by a later one, or stored.
        further: which stages are stored beside the last, ascending; they are of its kind.
    """

    num_inputs: int
    stages: tuple[Stage, ...]
    further: tuple[int, ...] = ()

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """Dtypes of the results: of the last stage, then of the others that are stored."""
        return self.dtype, *(self.stages[index].dtype for index in self.further)

    @property
    def gives_rows(self) -> bool:
        """Whether the result has a value for each element of a row, not one for each row."""
        return self.stages[-1].kind == ROW

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the result."""
        return self.stages[-1].dtype

    def stored_as(self, dtype: np.dtype) -> RowProgram:
        """The program with a result of another dtype of the same lanes."""
        *others, last = self.stages
        return dataclasses.replace(self, stages=(*others, last._replace(dtype=dtype)))

    def to_words(self) -> list[int]:
        words = [len(self.stages)]
        for index, (kind, dtype, program) in enumerate(self.stages):
            words += [kind + _STORED * (index in self.further), DTYPE_NUMBERS[dtype], *program.to_words()]
        return words

    @classmethod
    def from_words(cls, words: Words) -> RowProgram:
        count = words.integer()
        if not 1 <= count <= MAX_REGISTERS:
            raise ValueError(f"a row program of {count} stages")
        stages, further = [], []
        for index in range(count):
            kind, dtype = words.integer(), words.integer()
            if kind in (ROW + _STORED, NUMBER + _STORED) and index + 1 < count:
                further.append(index)
                kind -= _STORED
            if not 0 <= kind <= NUMBER or not 0 <= dtype < len(DTYPES):
                raise ValueError(f"a stage of kind {kind} and dtype number {dtype}")
            stages.append(Stage(kind, DTYPES[dtype], BlockProgram.from_words(words)))
        num_inputs = stages[0].program.num_inputs
        if any(stage.program.num_inputs != num_inputs + index for index, stage in enumerate(stages)) or kind < ROW:
            raise ValueError("malformed row program")
        if any(stages[index].kind != kind for index in further):
            raise ValueError("a row program stores results of several shapes")
        return cls(num_inputs, tuple(stages), tuple(further))

    def reference(self, inputs: Sequence[jax.Array], axes: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
        """Compute the first result of `references`."""
        return self.references(inputs, axes, shape)[0]

    def references(self, inputs: Sequence[jax.Array], axes: tuple[int, ...], shape: tuple[int, ...]) -> list[jax.Array]:
        """Compute all results in jax.lax, along the axes of inputs of one shape: first that of the last stage."""
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
        results = [known[-1], *(known[self.num_inputs + index] for index in self.further)]
        return results if self.gives_rows else [lax.squeeze(result, axes) for result in results]

    def __str__(self) -> str:
        names = ("sum", "max", "min", "product", "row", "number")
        marks = ["*" if index in self.further else "" for index in range(len(self.stages))]
        stages = zip(self.stages, marks, strict=True)
        return "[" + ", ".join(f"{names[kind]}{mark}{program}" for (kind, _, program), mark in stages) + "]"
