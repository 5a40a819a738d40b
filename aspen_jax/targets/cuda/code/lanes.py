"""Element-wise programs, loads and stores as C++."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.ir.program import Op, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.opcodes import lane_of, narrowing

if TYPE_CHECKING:
    from aspen_jax.ops.block_program import BlockProgram

# How cuda/kernels/tile.h names what converts elements to lanes and back.
_CONVERSIONS = {
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
    return _CONVERSIONS.get(dtype.name)


def place(coordinates: Sequence[str], strides: Sequence[int]) -> str:
    """The element at these coordinates of a view, counted from its first."""
    terms = [f"int64_t{{{at}}} * {stride}" for at, stride in zip(coordinates, strides, strict=True) if stride]
    return " + ".join(terms) or "0"


def load(op: Op, number: int, coordinates: Sequence[str]) -> str:
    """The lane of input `number` at these coordinates of its view."""
    operand = op.inputs[number]
    return f"{element(operand.dtype)}::load(buffers.inputs[{number}], {place(coordinates, operand.view.strides())})"


def lane_bits(scalar: np.ndarray) -> int:
    """The lane that holds an element known beforehand."""
    lane = lane_of(scalar.dtype)
    if lane == "b":
        return 0xFFFFFFFF if scalar else 0
    wide = scalar.astype(np.float32).view(np.uint32) if lane == "f" else scalar.astype(np.int64)
    return int(wide) & 0xFFFFFFFF


def finish(op: Op, strides: Sequence[int] | None = None) -> str:
    """A function `finish` that stores an element of each output: from the kernel's own lane, where there is a kernel.

    The result of a kernel of floats of 16 bits is a float32; `program` reads it and the other inputs at the output's coordinates.

    Args:
        op: the op.
        strides: of its outputs in memory; those of dense values by default.
    """
    num_main = op.family.num_main(op)
    at = [f"at[{axis}]" for axis in range(len(op.output.shape))]
    if op.program is None:
        lines, results = [], ["own"]
    else:
        registers = ["own"] if num_main else []
        registers += [load(op, number, at) for number in range(num_main, len(op.inputs))]
        lines, results = statements(op.program, registers, [value.dtype for value in op.outputs])
    own = ", [[maybe_unused]] uint32_t own" if num_main else ""
    # A kernel with further outputs and no program stores them itself.
    stores = [
        store(value, buffer, at, result, strides)
        for value, buffer, result in zip(op.outputs, output_buffers(op), results, strict=False)
    ]
    return function("void finish", own, [*lines, *stores])


def store(value: Value, buffer: str, coordinates: Sequence[str], lane: str, strides: Sequence[int] | None = None) -> str:
    """Storing a lane as an element of a value, which has other strides than a dense one where they are given."""
    at = place(coordinates, View.identity(value.shape).strides() if strides is None else strides)
    return f"{element(value.dtype)}::store({buffer}, {at}, {lane});"


def output_buffers(op: Op) -> list[str]:
    """Where each output begins."""
    return ["buffers.output", *(f"buffers.further[{number}]" for number in range(len(op.further)))]


def function(name: str, parameters: str, lines: Sequence[str]) -> str:
    """A function of these lines, with its type; it takes addresses, coordinates, and `parameters` behind a comma."""
    body = "\n".join(f"    {line}" for line in lines)
    arguments = f"[[maybe_unused]] const Addresses& buffers, [[maybe_unused]] const int* at{parameters}"
    return f"  static ASPEN_DEVICE {name}({arguments}) {{\n{body}\n  }}"


def statements(program: BlockProgram, inputs: Sequence[str], stored: Sequence[np.dtype] = ()) -> tuple[list[str], list[str]]:
    """C++ that computes a program from expressions for its inputs, and the names of its results. What is not read is left out.

    Args:
        program: of floats, integers and bools.
        inputs: an expression for each.
        stored: the dtypes as which its results are stored; (): they are not. A store rounds or wraps, so nothing else has to.
    """
    first = program.num_inputs + len(program.constants)
    program, used = _unrounded(program, stored), used_inputs(program)
    lines = [f"const uint32_t r{number} = {text};" for number, text in enumerate(inputs) if number in used]
    lines += [
        f"const uint32_t r{program.num_inputs + number} = {bits & 0xFFFFFFFF:#x}u;"
        for number, bits in enumerate(program.constants)
    ]
    read = {*program.results, *(arg for instruction in program.instructions for arg in instruction.args)}
    for number, (opcode, args) in enumerate(program.instructions):
        if first + number not in read:
            continue
        lines.append(f"const uint32_t r{first + number} = scalar::{opcode}({', '.join(f'r{arg}' for arg in args)});")
    return lines, [f"r{result}" for result in program.results]


def _unrounded(program: BlockProgram, stored: Sequence[np.dtype]) -> BlockProgram:
    """A program whose results are not rounded or wrapped to the dtypes as which they are stored."""
    first = program.num_inputs + len(program.constants)
    results = list(program.results)
    for number, (result, dtype) in enumerate(zip(program.results, stored, strict=False)):
        if result >= first and program.instructions[result - first].opcode == narrowing(dtype):
            (results[number],) = program.instructions[result - first].args
    return dataclasses.replace(program, result=results[0], further=tuple(results[1:]))


def used_inputs(program: BlockProgram) -> set[int]:
    """The input registers that a program reads."""
    read = {*program.results, *(arg for instruction in program.instructions for arg in instruction.args)}
    return {register for register in read if register < program.num_inputs}
