"""Element-wise programs, loads and stores as C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.program import Op, Operand

if TYPE_CHECKING:
    from aspen_jax.ops.block_program import BlockProgram

# How cuda/tile.h names what converts elements to lanes and back.
_ELEMENTS = {
    "bool": "Bool",
    "int8": "Plain<int8_t>",
    "int16": "Plain<int16_t>",
    "int32": "Plain<int32_t>",
    "uint8": "Plain<uint8_t>",
    "uint16": "Plain<uint16_t>",
    "uint32": "Plain<uint32_t>",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "Plain<uint32_t>",  # a lane is its bits
}


def element(dtype: np.dtype) -> str | None:
    """What loads and stores elements of a dtype, or None where lanes cannot hold it."""
    return _ELEMENTS.get(dtype.name)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next along each axis of a dense tensor."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def index(strides: Sequence[int], at: str = "at") -> str:
    """The element at coordinates `at`, counted from the first of a view."""
    terms = [f"int64_t{{{at}[{axis}]}} * {stride}" for axis, stride in enumerate(strides) if stride]
    return " + ".join(terms) or "0"


def load(op: Op, number: int, at: str = "at") -> str:
    """The lane of input `number` at coordinates `at` of its view."""
    operand: Operand = op.inputs[number]
    return f"{element(operand.dtype)}::load(buffers.inputs[{number}], {index(operand.view.strides(), at)})"


def finish(op: Op) -> str:
    """A function `finish` that stores an element of the output: from the kernel's own lane, where there is a kernel.

    The result of a kernel of floats of 16 bits is a float32; `program` reads it and the other inputs at the output's coordinates.
    """
    num_main = op.family.num_main(op)
    store = f"{element(op.output.dtype)}::store(buffers.output, {index(dense_strides(op.output.shape))}, "
    if op.program is None:
        lines, result = [], "own"
    else:
        registers = ["own"] if num_main else []
        registers += [load(op, number) for number in range(num_main, len(op.inputs))]
        lines, result = _statements(op.program, registers)
    own = "[[maybe_unused]] uint32_t own" if num_main else ""
    arguments = ", ".join(["const Addresses& buffers", "[[maybe_unused]] const int* at", *([own] if own else [])])
    body = "\n".join(f"    {line}" for line in [*lines, f"{store}{result});"])
    return f"  static ASPEN_DEVICE void finish({arguments}) {{\n{body}\n  }}"


def _statements(program: BlockProgram, inputs: Sequence[str]) -> tuple[list[str], str]:
    """C++ that computes a program from expressions for its inputs, and the name of its result."""
    lines = [f"[[maybe_unused]] const uint32_t r{number} = {text};" for number, text in enumerate(inputs)]
    lines += [
        f"const uint32_t r{program.num_inputs + number} = {bits & 0xFFFFFFFF:#x}u;"
        for number, bits in enumerate(program.constants)
    ]
    first = program.num_inputs + len(program.constants)
    for number, (opcode, args) in enumerate(program.instructions):
        lines.append(f"const uint32_t r{first + number} = scalar::{opcode}({', '.join(f'r{arg}' for arg in args)});")
    return lines, f"r{program.result}"
