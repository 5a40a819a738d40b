"""Merges block ops of one shape, and row programs on the same rows, into one op of several outputs.

Two ops are merged where one reads the other or both read a common input.

A value that several ops read, or the caller gets, does not end a chain: the merged op stores it and goes on with it in registers.
So a forward pass that keeps residuals stays one op. Siblings become one: the gates of an LSTM, the updates of an optimizer, the
sums that a normalisation's gradient takes of one tensor.

A merge must not close a circle: no path may lead from one op to the other through a third. Nor may it make the longest path of
the program longer, or ops that could run early would wait.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY, BlockBuilder, BlockProgram
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.row_program import MAX_REGISTERS, NUMBER, ROW, RowProgram, Stage
from aspen_jax.ops.rows import ROWS, RowsAttrs
from aspen_jax.passes import row_writer
from aspen_jax.passes.fuse import MAX_INPUTS, MAX_INSTRUCTIONS
from aspen_jax.passes.row_space import Space

# Inputs and outputs share L1.
MAX_OPERANDS = MAX_INPUTS

# Of the ops that read a common input, only those nearest in the program are tried, and only so many ops between are looked at.
_MOST_SIBLINGS = 8
_MOST_BETWEEN = 512

_MOST_NAMES = 3

# What stages may be kept as.
_KEPT = (np.dtype(np.float32), np.dtype(np.int32))


def run(program: Program, machine: Machine | None = None) -> Program:
    """Merge block ops as long as that pays."""
    merger = _Merger(program, Machine() if machine is None else machine)
    while merger.sweep():
        pass
    return program.replace(ops=tuple(merger.ops))


class _Merger:
    """The ops of a program in an order that stays topological, and who reads what."""

    def __init__(self, program: Program, machine: Machine):
        self.ops = list(program.ops)
        self._machine = machine
        self._is_mergeable = functools.cache(_is_mergeable)
        self._tried: dict[tuple[Op, Op, tuple[Value, ...]], Op | None] = {}
        self._results = {operand.value for operand in program.outputs}
        self._place = {op: index for index, op in enumerate(self.ops)}
        self._producer = {value: op for op in self.ops for value in op.outputs}
        self._readers: dict[Value, dict[Op, None]] = {}
        for op in self.ops:
            for operand in op.inputs:
                self._readers.setdefault(operand.value, {})[op] = None
        # The longest path in ops to each op, and from it to the end. They are counted anew before each sweep.
        self._above: dict[Op, int] = {}
        self._below: dict[Op, int] = {}

    def sweep(self) -> bool:
        """Try each op with those before it. Returns whether any were merged."""
        self._count_paths()
        before, index = len(self.ops), 0
        while index < len(self.ops):
            merged = self._merge_with_earlier(self.ops[index]) if self._is_mergeable(self.ops[index]) else None
            index = index + 1 if merged is None else self._place[merged]
        return len(self.ops) < before

    def _count_paths(self) -> None:
        for op in self.ops:
            self._above[op] = max((self._above[parent] + 1 for parent in self._parents(op)), default=0)
        for op in reversed(self.ops):
            self._below[op] = max((self._below[child] + 1 for child in self._children(op)), default=0)
        self._longest = max(self._above.values(), default=0)

    def _parents(self, op: Op) -> Iterator[Op]:
        return (self._producer[operand.value] for operand in op.inputs if operand.value in self._producer)

    def _children(self, op: Op) -> Iterator[Op]:
        return (reader for value in op.outputs for reader in self._readers.get(value, ()))

    def _merge_with_earlier(self, op: Op) -> Op | None:
        """The op merged with the earlier one that saves most; None where none pays."""
        found: dict[Op, float] = {}
        for other in self._candidates(op):
            if other not in found and (saved := self._saved_bytes(other, op)) >= 0:
                found[other] = saved
        for other in sorted(found, key=lambda other: (-found[other], -self._place[other])):
            merged = self._merged(other, op)
            if merged is None or not self._pays(other, op, merged, found[other]):
                continue
            between = self._between(other, op)
            if between is not None:
                self._replace(other, op, merged, between)
                return merged
        return None

    def _candidates(self, op: Op) -> Iterator[Op]:
        end = self._place[op]

        def fits(other: Op) -> bool:
            return other is not op and self._place[other] < end and self._is_mergeable(other) and _are_alike(other, op)

        for operand in op.inputs:
            producer = self._producer.get(operand.value)
            if producer is not None and fits(producer):
                yield producer
            siblings = filter(fits, self._readers[operand.value])
            yield from sorted(siblings, key=lambda other: -self._place[other])[:_MOST_SIBLINGS]

    def _saved_bytes(self, first: Op, second: Op) -> float:
        """What is not read or written any more; -1 where `second` reads of `first` otherwise than element by element."""
        own = set(first.outputs)
        if any(operand.value in own and not operand.is_whole for operand in second.inputs):
            return -1
        size = max(math.prod(operand.shape) for operand in (*first.inputs, Operand.whole(first.output)))
        again = [operand for operand in set(first.inputs) & set(second.inputs) if operand.value.size >= size]
        handed = {operand.value for operand in second.inputs if operand.value in own}
        dropped = own - set(self._kept(first, second))
        return sum(operand.dtype.itemsize for operand in again) * size + sum(value.nbytes for value in (*handed, *dropped))

    def _kept(self, first: Op, second: Op) -> list[Value]:
        """The outputs of `first` that others than `second` need."""
        return [value for value in first.outputs if value in self._results or self._readers.get(value, {}).keys() - {second}]

    def _merged(self, first: Op, second: Op) -> Op | None:
        """One op for both; None where it would be too large or has no kernel. Later sweeps ask again."""
        kept = self._kept(first, second)
        key = first, second, tuple(kept)
        if key not in self._tried:
            self._tried[key] = self._written(first, second, kept)
        return self._tried[key]

    def _written(self, first: Op, second: Op, kept: list[Value]) -> Op | None:
        are_blocks = first.family is BLOCK and second.family is BLOCK
        merged = _merged_blocks(first, second, kept) if are_blocks else _merged_rows(first, second, kept)
        if merged is None:
            return None
        merged = merged.replace(
            name=_joined_names(first.name, second.name),
            source=first.source or second.source,
            exact=first.exact or second.exact,
        )
        return merged if self._machine.has_kernel(merged) else None

    def _pays(self, first: Op, second: Op, merged: Op, saved: float) -> bool:
        others = {first, second}
        above = max((self._above[parent] + 1 for op in others for parent in self._parents(op) if parent not in others), default=0)
        below = max((self._below[child] + 1 for op in others for child in self._children(op) if child not in others), default=0)
        if above + below > self._longest:
            return False
        # Where nothing is saved but the start of a tile, an op that is worth several gains nothing.
        is_small = self._machine.of_ops([merged]) - self._machine.tile_ns <= self._machine.shortest_tile_ns
        is_block = merged.family is BLOCK
        return (saved > 0 or (is_block and is_small)) and self._machine.are_cheaper([merged], [first, second])

    def _between(self, first: Op, second: Op) -> set[Op] | None:
        """The ops before `second` that depend on `first`; None where `second` depends on one of them, or they are many."""
        end = self._place[second]
        found: set[Op] = set()
        waiting = [child for child in self._children(first) if child is not second]
        while waiting:
            op = waiting.pop()
            if op is second or len(found) > _MOST_BETWEEN:
                return None
            if op not in found and self._place[op] < end:
                found.add(op)
                waiting.extend(self._children(op))
        return found

    def _replace(self, first: Op, second: Op, merged: Op, between: set[Op]) -> None:
        """Put the merged op behind all that `second` depends on, and before all that depends on `first`."""
        begin, end = self._place[first], self._place[second]
        window = [op for op in self.ops[begin : end + 1] if op is not first and op is not second]
        earlier = [op for op in window if op not in between]
        self.ops[begin : end + 1] = [*earlier, merged, *(op for op in window if op in between)]
        for index in range(begin, len(self.ops)):
            self._place[self.ops[index]] = index
        self._above[merged] = max(self._above[first], self._above[second] - (second in self._children(first)))
        self._below[merged] = max(self._below[second], self._below[first] - (second in self._children(first)))
        for op in (first, second):
            del self._place[op]
            for operand in op.inputs:
                self._readers[operand.value].pop(op, None)
        for value in first.outputs:
            self._producer.pop(value)
        for value in merged.outputs:
            self._producer[value] = merged
        for operand in merged.inputs:
            self._readers[operand.value][merged] = None


def _merged_blocks(first: Op, second: Op, kept: list[Value]) -> Op | None:
    own = set(first.outputs)
    operands = dict.fromkeys((*first.inputs, *(operand for operand in second.inputs if operand.value not in own)))
    inputs = {operand: index for index, operand in enumerate(operands)}
    if len(inputs) + len(kept) + len(second.outputs) > MAX_OPERANDS:
        return None
    assert first.program is not None
    assert second.program is not None
    block = BlockBuilder(len(inputs))
    refs = block.splice_all(first.program, [block.input(inputs[operand]) for operand in first.inputs])
    known = dict(zip(first.outputs, refs, strict=True))
    given = [known[operand.value] if operand.value in known else inputs[operand] for operand in second.inputs]
    refs = [*(known[value] for value in kept), *block.splice_all(second.program, given)]
    program = block.build(*refs)
    if len(program.instructions) > MAX_INSTRUCTIONS:
        return None
    output, *further = *kept, *second.outputs
    return second.replace(inputs=tuple(inputs), output=output, further=tuple(further), program=program)


def _merged_rows(first: Op, second: Op, kept: list[Value]) -> Op | None:
    own = set(first.outputs)
    inputs = dict.fromkeys((*first.inputs, *(operand for operand in second.inputs if operand.value not in own)))
    registers: dict[Operand, int] = {operand: index for index, operand in enumerate(inputs)}
    parts = [_as_rows(op) for op in (first, second)]
    num_stages = sum(len(part.stages) for part in parts)
    if len(inputs) > row_writer.MAX_INPUTS or num_stages > min(row_writer.MAX_STAGES, MAX_REGISTERS - len(inputs)):
        return None
    stages: list[Stage] = []
    stored: dict[int, Value] = {}
    for op, part, outputs in zip((first, second), parts, (kept, second.outputs), strict=True):
        places = [registers[operand] for operand in op.inputs]
        for stage in part.stages:
            block = BlockBuilder(len(inputs) + len(stages))
            program = block.build(block.splice(stage.program, [block.input(place) for place in places]))
            places.append(len(inputs) + len(stages))
            stages.append(stage._replace(program=program))
        results = zip(op.outputs, (len(part.stages) - 1, *part.further), strict=True)
        for value, stage in results:
            place = places[len(op.inputs) + stage]
            registers[Operand.whole(value)] = place
            if value in outputs:
                stored[place - len(inputs)] = value
            elif part.stages[stage].dtype not in _KEPT:
                return None  # a number between stages has a lane's own dtype
    *others, last = sorted(stored)
    program = RowProgram(len(inputs), tuple(stages), tuple(others))
    axes = next(op.attrs.axes for op in (first, second) if op.family is not BLOCK)
    further = tuple(stored[stage] for stage in others)
    return Op(ROWS, RowsAttrs(axes, program), tuple(inputs), stored[last], further=further)


def _is_mergeable(op: Op) -> bool:
    if op.output.size == 0 or any(lane_of(np.dtype(item.dtype)) is None for item in (*op.inputs, *op.outputs)):
        return False
    if op.family is REDUCE:
        is_plain = op.program is None and op.attrs.kind < ROW and op.output.dtype in _KEPT and op.inputs[0].dtype in _KEPT
        return is_plain and Space.of(op) is not None
    # A copy moves data and is best left alone.
    return op.family is ROWS or (op.family is BLOCK and op.program is not None and not op.program.is_copy)


def _are_alike(one: Op, other: Op) -> bool:
    """Whether two may share tiles: blocks of one shape, programs on the same rows, or a block and rows that give its shape."""
    if one.output.shape != other.output.shape:
        return False
    blocks = [op for op in (one, other) if op.family is BLOCK]
    if len(blocks) == 2:
        return True
    if blocks:
        (of_rows,) = (op for op in (one, other) if op.family is not BLOCK)
        return of_rows.family is ROWS and of_rows.attrs.rows.gives_rows and not blocks[0].further and bool(blocks[0].inputs)
    gives_rows = [op.family is ROWS and op.attrs.rows.gives_rows for op in (one, other)]
    same = one.inputs[0].shape == other.inputs[0].shape and one.attrs.axes == other.attrs.axes
    return same and gives_rows[0] == gives_rows[1]


def _as_rows(op: Op) -> RowProgram:
    """The op as a row program."""
    if op.family is ROWS:
        return op.attrs.rows
    if op.family is REDUCE:
        number = BlockProgram(2, (), (), 1)
        return RowProgram(1, (Stage(op.attrs.kind, op.output.dtype, COPY), Stage(NUMBER, op.output.dtype, number)))
    assert op.program is not None
    return RowProgram(len(op.inputs), (Stage(ROW, op.output.dtype, op.program),))


def _joined_names(first: str, second: str) -> str:
    names = list(dict.fromkeys((*first.split(" + "), *second.split(" + "))))
    return " + ".join(names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 1], "..."])
