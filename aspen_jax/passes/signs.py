"""Blocks that only ask whether x > 0 ask relu(x) instead: gradients then need not keep x.

x > 0 exactly where relu(x) > 0, for NaN and infinities too. JAX's gradient of relu asks x, which a forward pass has no other use
for: it would be written and read for that alone, and would end the chain of ops that computes it.
"""

from __future__ import annotations

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockProgram, single
from aspen_jax.passes import fuse


def run(program: Program) -> Program:
    """Ask the result of each relu that is computed before, and fuse what has one reader less."""
    results: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        inputs = tuple(
            Operand(results[item.value], item.view) if item.value in results and _asks_sign(op, index) else item
            for index, item in enumerate(op.inputs)
        )
        ops.append(op if inputs == op.inputs else op.replace(inputs=inputs))
        if op.family is BLOCK and op.program == single("relu_f") and op.inputs[0].is_whole:
            operand = op.inputs[0]
            if (operand.shape, operand.dtype) == (op.output.shape, op.output.dtype):
                results.setdefault(operand.value, op.output)
    if all(new is old for new, old in zip(ops, program.ops, strict=True)):
        return program
    return fuse.run(program.replace(ops=tuple(ops)))


def _asks_sign(op: Op, index: int) -> bool:
    """Whether a block reads an input only to compare it: x > 0."""
    if op.family is not BLOCK or op.program is None:
        return False
    program: BlockProgram = op.program
    zeros = [program.num_inputs + number for number, bits in enumerate(program.constants) if bits == 0]
    reads = [instruction for instruction in program.instructions if index in instruction.args]
    return (
        index not in program.results
        and bool(reads)
        and all(read.opcode == "gt_f" and read.args[0] == index and read.args[1] in zeros for read in reads)
    )
