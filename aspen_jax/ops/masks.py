"""Products with a converted bool select, as XLA's do: NaN and infinities behind the mask do not come through.

XLA reads `convert(mask) * x` as `select(mask, x, 0)`, and `convert(mask) / n` as `select(mask, 1 / n, 0)` where n is repeated.
Users see that under `jax.jit`. It takes a mask that is converted once, to float32 or float16, and has the product's own shape.
A mask that is broadcast, transposed or cut after its conversion is a number to XLA, and so it is here.
"""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Op, Operand
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockBuilder, BlockProgram, single
from aspen_jax.ops.builder import Builder

# XLA on CPU widens bfloat16 before it simplifies, so that the mask is converted twice there.
DTYPES = ("float32", "float16")

_NEGATION = single("neg_f")

# Where the other operand is this constant, the instruction gives back the one at the index.
_IDENTITIES = {"add_f": (0.0, (0, 1)), "sub_f": (0.0, (0,)), "mul_f": (1.0, (0, 1)), "div_f": (1.0, (0,)), "pow_f": (1.0, (0,))}


def mask_of(build: Builder, operand: Operand) -> Operand | None:
    """The bools that an operand was converted from, or None where it is no mask."""
    is_negative = False
    while True:
        op = build.writer(operand.value)
        program = None if op is None or op.family is not BLOCK else op.program
        if op is None or program is None or len(op.inputs) != 1:
            return None
        view = op.inputs[0].view.compose(operand.view)
        if view is None:
            return None
        operand = Operand(op.inputs[0].value, view)
        if operand.dtype == np.bool_:
            is_mask = _is_conversion(op) and view.is_dense() and not is_negative
            return operand if is_mask else None
        if program == _NEGATION:
            is_negative = not is_negative
        elif not (program.is_copy or _is_identity(program)) or op.output.dtype != operand.dtype:
            return None


def selected(build: Builder, mask: Operand, value: Operand) -> Operand:
    """What of a value is not behind a mask of its shape, and zeros."""
    block = BlockBuilder(2)
    chosen = block.emit("select", block.input(0), block.input(1), block.constant(np.float32(0)))
    return build.block(block.build(chosen), [mask, value], value.shape, value.dtype)


def negated(build: Builder, operand: Operand) -> Operand | None:
    """What an operand is the negation of, or None."""
    op = build.writer(operand.value)
    return op.inputs[0] if op is not None and op.family is BLOCK and op.program == _NEGATION and operand.is_whole else None


def is_repeated(build: Builder, operand: Operand) -> bool:
    """Whether an operand holds fewer elements than it shows."""
    while True:
        if any(dim.source < 0 and dim.extent > 1 for dim in operand.view.dims):
            return True
        op = build.writer(operand.value)
        if op is None or op.family is not BLOCK or op.program is None:
            return False
        if not op.inputs:
            return True  # one value known when tracing
        view = op.inputs[0].view.compose(operand.view) if op.program.is_copy else None
        if view is None:
            return False
        operand = Operand(op.inputs[0].value, view)


def _is_conversion(op: Op) -> bool:
    assert op.program is not None
    opcodes = [instruction.opcode for instruction in op.program.instructions]
    return opcodes in (["f_from_b"], ["f_from_b", "as_f16_f"]) and op.output.dtype.name in DTYPES


def _is_identity(program: BlockProgram) -> bool:
    """Whether a program gives back its only input, but for the sign of zeros."""
    if len(program.instructions) != 1 or len(program.constants) != 1 or program.results != (2,):
        return False
    ((opcode, args),) = program.instructions
    neutral, places = _IDENTITIES.get(opcode, (0.0, ()))
    constant = np.array(program.constants[0], np.int32).view(np.float32)
    return constant == neutral and any(args == ((0, 1) if place == 0 else (1, 0)) for place in places)
