"""Makes every program output a value of its own that an op writes, so that it can be written into the caller's buffer."""

from __future__ import annotations

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY


def run(program: Program) -> Program:
    """Copy outputs that are inputs, constants, duplicates, or views that do more than reshape."""
    produced = {value for op in program.ops for value in op.outputs}
    taken: set[Value] = set()
    ops, outputs = list(program.ops), []
    for operand in program.outputs:
        if not operand.view.is_dense() or operand.value not in produced or operand.value in taken:
            copy = Op(BLOCK, None, (operand,), Value(operand.shape, operand.dtype), COPY, "output")
            ops.append(copy)
            operand = Operand.whole(copy.output)
        taken.add(operand.value)
        outputs.append(operand)
    return program.replace(ops=tuple(ops), outputs=tuple(outputs))
