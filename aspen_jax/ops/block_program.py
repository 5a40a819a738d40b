"""Block programs: chains of element-wise instructions, run block by block in L1.

A block program is the body of a `block` op and the epilogue of any other op. It is a straight line of instructions in single
assignment form: registers 0 .. num_inputs-1 are the inputs, the constants follow, then one register for each instruction.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from aspen_jax.ops.opcodes import LANE_DTYPES, NAMES, OPCODES, lane_of

if TYPE_CHECKING:
    from aspen_jax.ops.attrs import Words

_ZERO = 0
_TRUE, _FALSE = -1, 0  # masks
_MINUS_INFINITY = int(np.float32(-np.inf).view(np.int32))
_ARGUMENTS = 3  # every instruction is encoded with this many argument words


class Instruction(NamedTuple):
    """An opcode's name and its argument registers."""

    opcode: str
    args: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class BlockProgram:
    """A straight line of element-wise instructions.

    Attributes:
        num_inputs: number of input registers.
        constants: the 32 bits of each constant, as a signed integer.
        instructions: in order; instruction k writes register num_inputs + len(constants) + k.
        result: the register that is stored; where there are several, the first.
        further: the registers that are stored beside it, in an output each.
    """

    num_inputs: int
    constants: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    result: int
    further: tuple[int, ...] = ()

    @property
    def results(self) -> tuple[int, ...]:
        """The registers that are stored."""
        return self.result, *self.further

    @property
    def is_copy(self) -> bool:
        """Whether the program hands its only input through."""
        return self.num_inputs == 1 and self.results == (0,)

    @property
    def is_plain_conversion(self) -> bool:
        """Whether the program hands its only input through but for its dtype, to one that holds all its values."""
        return self == single("copy")

    def to_words(self) -> list[int]:
        first = self.num_inputs + len(self.constants)
        words: list[int] = []
        for index, (opcode, args) in enumerate(self.instructions):
            padding = (0,) * (_ARGUMENTS - len(args))
            words += [OPCODES[opcode].number, first + index, *args, *padding]
        return [self.num_inputs, len(self.constants), *self.constants, len(words), *words, *self.results]

    @classmethod
    def from_words(cls, words: Words, num_results: int = 1) -> BlockProgram:
        num_inputs, constants, flat = words.integer(), words.list(), words.list()
        results = [words.integer() for _ in range(num_results)]
        row = 2 + _ARGUMENTS
        if num_inputs < 0 or len(flat) % row:
            raise ValueError("malformed block program")
        instructions = []
        for index in range(0, len(flat), row):
            number, destination, *args = flat[index : index + row]
            if number not in NAMES:
                raise ValueError(f"unknown block opcode {number}")
            if destination != num_inputs + len(constants) + index // row:
                raise ValueError("block program is not in single assignment form")
            opcode = OPCODES[NAMES[number]]
            if not all(0 <= register < destination for register in args[: opcode.arity]):
                raise ValueError("block program reads a register before it is written")
            instructions.append(Instruction(NAMES[number], tuple(args[: opcode.arity])))
        if not all(0 <= result < num_inputs + len(constants) + len(instructions) for result in results):
            raise ValueError("block program returns a register that it does not have")
        return cls(num_inputs, constants, tuple(instructions), results[0], tuple(results[1:]))

    def reference(self, *inputs: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        """Compute the first result of `references`."""
        return dataclasses.replace(self, further=()).references(*inputs, shape=shape, dtypes=[dtype])[0]

    def references(self, *inputs: jax.Array, shape: tuple[int, ...], dtypes: Sequence[np.dtype]) -> list[jax.Array]:
        """Compute all results in jax.lax, on inputs of one shape. Constants take the lane of the instruction that reads them."""
        lanes: dict[int, Any] = dict(enumerate(inputs))
        for register, array in lanes.items():
            if lane_of(array.dtype) is not None:
                lanes[register] = array.astype(LANE_DTYPES[str(lane_of(array.dtype))])
        first = self.num_inputs + len(self.constants)

        def read(register: int, lane: np.dtype) -> jax.Array:
            if self.num_inputs <= register < first:
                bits = np.array(self.constants[register - self.num_inputs], np.int32)
                value = bits.astype(np.bool_) if lane == np.bool_ else bits.view(lane)
                return jax.numpy.full(shape, value)
            return lanes[register]

        for index, (name, args) in enumerate(self.instructions):
            opcode = OPCODES[name]
            wild = next((lanes[arg].dtype for arg in reversed(args) if arg in lanes), np.dtype(np.float32))
            arguments = [
                read(arg, wild if lane == "?" else LANE_DTYPES[lane]) for arg, lane in zip(args, opcode.lanes, strict=False)
            ]
            lanes[first + index] = opcode.reference(*arguments)
        return [
            read(result, LANE_DTYPES.get(lane_of(dtype) or "", dtype)).astype(dtype)
            for result, dtype in zip(self.results, dtypes, strict=True)
        ]

    def __str__(self) -> str:
        constants = {
            self.num_inputs + index: f"{np.array(bits, np.int32).view(np.float32):g}" for index, bits in enumerate(self.constants)
        }
        first = self.num_inputs + len(self.constants)

        def name(register: int) -> str:
            if register < self.num_inputs:
                return f"x{register}"
            return constants.get(register, f"t{register - first}")

        lines = [f"t{k}={i.opcode}({','.join(map(name, i.args))})" for k, i in enumerate(self.instructions)]
        return "{" + "; ".join([*lines, ", ".join(map(name, self.results))]) + "}"


COPY = BlockProgram(1, (), (), 0)


Ref = int
"""A register of a program under construction: inputs come first, then instructions; constants are negative, from -1 down."""


class BlockBuilder:
    """Writes a block program; equal instructions and constants are written once, unread ones are dropped."""

    def __init__(self, num_inputs: int):
        self._num_inputs = num_inputs
        self._constants: dict[int, Ref] = {}
        self._instructions: dict[Instruction, Ref] = {}

    def input(self, index: int) -> Ref:
        return index

    def constant(self, value: Any) -> Ref:
        """A scalar of any dtype that has a lane (bools are masks of ones or zeros)."""
        array = np.asarray(value).reshape(())
        lane = lane_of(array.dtype)
        assert lane is not None, array.dtype
        bits = -int(bool(array)) if lane == "b" else int(array.astype(LANE_DTYPES[lane]).view(np.int32))
        return self._constant_bits(bits)

    def _constant_bits(self, bits: int) -> Ref:
        return self._constants.setdefault(bits, -1 - len(self._constants))

    def constants(self, bits: Sequence[int]) -> list[Ref]:
        """Constants from the bits that a program holds of them."""
        return [self._constant_bits(one) for one in bits]

    def emit(self, opcode: str, *args: Ref) -> Ref:
        if opcode == "max_f":
            for one, other in (args, args[::-1]):
                if one == self._constants.get(_ZERO):
                    opcode, args = "relu_f", (other,)
                    break
                if one == self._constants.get(_MINUS_INFINITY):
                    return other
        if opcode == "select":
            condition, *cases = args
            for known, case in zip((_TRUE, _FALSE), cases, strict=True):
                if condition == self._constants.get(known):
                    return case
        return self._instructions.setdefault(Instruction(opcode, args), self._num_inputs + len(self._instructions))

    def splice(self, program: BlockProgram, inputs: Sequence[Ref]) -> Ref:
        """Write `program` with its inputs bound to `inputs`; returns its first result."""
        return self.splice_all(program, inputs)[0]

    def splice_all(self, program: BlockProgram, inputs: Sequence[Ref]) -> list[Ref]:
        """Write `program` with its inputs bound to `inputs`; returns its results."""
        registers = [*inputs, *self.constants(program.constants)]
        for opcode, args in program.instructions:
            registers.append(self.emit(opcode, *[registers[arg] for arg in args]))
        return [registers[result] for result in program.results]

    def build(self, *results: Ref) -> BlockProgram:
        """The program that stores these registers."""
        used = set(results)
        for (_, args), ref in reversed(self._instructions.items()):
            if ref in used:
                used.update(args)
        constants = {ref: bits for bits, ref in self._constants.items() if ref in used}
        kept = {ref: instruction for instruction, ref in self._instructions.items() if ref in used}
        registers = {ref: number for number, ref in enumerate([*range(self._num_inputs), *constants, *kept])}
        instructions = tuple(Instruction(opcode, tuple([registers[arg] for arg in args])) for opcode, args in kept.values())
        result, *further = (registers[ref] for ref in results)
        return BlockProgram(self._num_inputs, tuple(constants.values()), instructions, result, tuple(further))


@functools.cache
def single(opcode: str) -> BlockProgram:
    """The program of one instruction on its own inputs."""
    arity = OPCODES[opcode].arity
    return BlockProgram(arity, (), (Instruction(opcode, tuple(range(arity))),), arity)
