"""Finds a softmax in a row program, so that it can be computed while the row is still being made."""

from __future__ import annotations

from typing import Any

from aspen_jax.ops import windows
from aspen_jax.ops.block_program import BlockBuilder, BlockProgram, Ref
from aspen_jax.ops.row_program import ROW, RowProgram

# What only rounds: an online softmax rounds elsewhere.
_ROUNDS = ("copy", "as_bf16_f", "as_f16_f")

_ONE = 0x3F800000


def softmax_of(rows: RowProgram) -> BlockProgram | None:
    """The program over the inputs whose softmax along the row is the result; None where the result is something else."""
    reduced = [number for number, stage in enumerate(rows.stages) if stage.kind < ROW]
    if [rows.stages[number].kind for number in reduced] != [windows.MAX, windows.SUM]:
        return None
    values: list[Any] = [("input", number) for number in range(rows.num_inputs)]
    logits = weight = logits_ref = None
    builder = BlockBuilder(rows.num_inputs)
    refs: list[Ref | None] = [builder.input(number) for number in range(rows.num_inputs)]
    for number, stage in enumerate(rows.stages):
        program = stage.program
        expression = _expression(program, values)
        # As instructions, as far as inputs alone are read.
        used = {arg for instruction in program.instructions for arg in instruction.args} | {program.result}
        known = all(refs[register] is not None for register in used if register < program.num_inputs)
        ref = builder.splice(program, [item or builder.input(0) for item in refs]) if known else None
        if number == reduced[0]:
            logits, logits_ref = expression, ref
            expression, ref = ("most",), None
        elif number == reduced[1]:
            weight, expression, ref = expression, ("sum",), None
        values.append(expression)
        refs.append(ref)
    if logits_ref is None or weight != ("exp_f", ("sub_f", logits, ("most",))):
        return None
    inverse = ("div_f", ("constant", _ONE), ("sum",))
    if values[-1] not in (("div_f", weight, ("sum",)), ("mul_f", weight, inverse), ("mul_f", inverse, weight)):
        return None
    return builder.build(logits_ref)


def _expression(program: BlockProgram, inputs: list[Any]) -> Any:
    """What a program computes, as nested tuples without roundings."""
    registers = [*inputs, *(("constant", bits & 0xFFFFFFFF) for bits in program.constants)]
    for opcode, args in program.instructions:
        registers.append(registers[args[0]] if opcode in _ROUNDS else (opcode, *(registers[arg] for arg in args)))
    return registers[program.result]
