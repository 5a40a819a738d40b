"""Writing a Program op by op: what the converters in `ops/` and the passes use to make ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aspen_jax.ir.program import Op, Operand, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY, BlockProgram
from aspen_jax.ops.family import OpFamily


class Builder:
    """Collects ops in order.

    Attributes:
        ops: what was written so far.
        constants: arrays known when tracing, and the values that stand for them.
        name, source, exact: given to each op that is written; set them before converting an equation.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.constants: list[tuple[Value, np.ndarray]] = []
        self._writers: dict[Value, Op] = {}
        self.name = ""
        self.source = ""
        self.exact = False

    def op(
        self, family: OpFamily, attrs: Any, inputs: Sequence[Operand], program: BlockProgram | None = None, dtype: Any = None
    ) -> Operand:
        """Write an op whose result shape and dtype the family infers; `dtype` is that of the program's result, if any."""
        shape, inferred = family.infer(attrs, [(item.shape, item.dtype) for item in inputs])
        return self._write(family, attrs, inputs, Value(shape, np.dtype(dtype or inferred)), program)

    def block(self, program: BlockProgram, inputs: Sequence[Operand], shape: tuple[int, ...], dtype: Any) -> Operand:
        """Write a block op over inputs of `shape`."""
        return self._write(BLOCK, None, inputs, Value(shape, np.dtype(dtype)), program)

    def copy(self, operand: Operand) -> Operand:
        """Write what the operand's view shows as a dense value; the layout pass folds it away where readers can use the view."""
        if operand.is_whole:
            return operand
        return self.block(COPY, [operand], operand.shape, operand.dtype)

    def constant(self, array: np.ndarray) -> Operand:
        """A value for an array known when tracing."""
        array = np.asarray(array, order="C")  # ascontiguousarray would give a scalar a dimension
        value = Value(array.shape, array.dtype)
        self.constants.append((value, array))
        return Operand.whole(value)

    def writer(self, value: Value) -> Op | None:
        """The op that writes a value; None for one from outside, and for one of an equation that stays with XLA."""
        return self._writers.get(value)

    def add(self, op: Op) -> None:
        """Write an op that has several outputs."""
        self.ops.append(op)
        self._writers.update(dict.fromkeys(op.outputs, op))

    def _write(
        self, family: OpFamily, attrs: Any, inputs: Sequence[Operand], output: Value, program: BlockProgram | None
    ) -> Operand:
        op = Op(family, attrs, tuple(inputs), output, program, self.name, self.source, self.exact)
        self.ops.append(op)
        self._writers[output] = op
        return Operand.whole(output)
