"""Block programs: building, encoding, and the table of instructions that Python and C++ share."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aspen_jax.ops.attrs import Words
from aspen_jax.ops.block_program import COPY, BlockBuilder, BlockProgram, single
from aspen_jax.ops.opcodes import OPCODES


def test_python_and_cpp_share_one_table():
    table = Path(__file__).parents[2] / "cpu" / "block_ops.inc"
    rows = re.findall(r"^ASPEN_BLOCK_OP\((\w+), (\d+), (\d+)\)", table.read_text(), re.MULTILINE)
    assert {name: (int(number), int(arity)) for name, number, arity in rows} == {
        name: (opcode.number, opcode.arity) for name, opcode in OPCODES.items()
    }


def chain() -> BlockProgram:
    block = BlockBuilder(2)
    x, y = block.input(0), block.input(1)
    product = block.emit("mul_f", x, block.constant(np.float32(2)))
    block.emit("exp_f", y)  # never read
    again = block.emit("mul_f", x, block.constant(np.float32(2)))
    assert again == product
    return block.build(block.emit("add_f", product, y))


def test_equal_instructions_are_written_once_and_unread_ones_dropped():
    program = chain()
    assert [instruction.opcode for instruction in program.instructions] == ["mul_f", "add_f"]
    assert len(program.constants) == 1


def test_words_round_trip():
    for program in (chain(), COPY, single("select")):
        words = Words(program.to_words())
        assert BlockProgram.from_words(words) == program
        assert words.done()


def test_splice_binds_inputs():
    block = BlockBuilder(1)
    x = block.input(0)
    program = block.build(block.splice(chain(), [x, x]))
    values = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(program.reference(values, shape=(4,), dtype=np.dtype(np.float32)), values * 3)


@pytest.mark.parametrize("value", [np.float32(0), np.float32(-0.0), np.float32(-np.inf), np.int32(-1), np.bool_(True)])
def test_constants_keep_their_bits(value):
    block = BlockBuilder(0)
    program = block.build(block.constant(value))
    result = np.asarray(program.reference(shape=(2,), dtype=value.dtype))
    assert result.dtype == value.dtype
    assert np.signbit(result).tolist() == [bool(np.signbit(value))] * 2 if value.dtype != bool else result.all()


@pytest.mark.parametrize("position", range(len(chain().to_words())))
def test_corrupt_words_are_refused_or_still_a_program(position):
    words = chain().to_words()
    for wrong in (-1, 999, 1 << 40):
        mutated = [*words[:position], wrong, *words[position + 1 :]]
        try:
            program = BlockProgram.from_words(Words(mutated))
        except ValueError:
            continue
        first = program.num_inputs + len(program.constants)
        for index, instruction in enumerate(program.instructions):
            assert all(0 <= register < first + index for register in instruction.args)
