"""Fuses chains of block ops into one block program each, so that intermediates stay in L1 (BrainSlug, section 4.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockBuilder, BlockProgram, Ref

# Beyond this a block's registers no longer fit L1 (inputs), or one program no longer pays (instructions).
MAX_INPUTS = 24
MAX_INSTRUCTIONS = 96


def run(program: Program) -> Program:
    """Merge every block op into its reader where that reader is the only one and reads it whole.

    An op read through a broadcast stays apart, or it would be computed again for each repetition. Constants are the exception,
    and conversions to a wider dtype, which cost less than to read their result.
    """
    readers: dict[Value, set[Value | None]] = {}
    for value, uses in program.uses().items():
        readers[value] = {None if op is None else op.output for op, _ in uses}
    blocks: dict[Value, _Block] = {}
    ops: dict[Value, Op] = {}
    for op in program.ops:
        ops[op.output] = op
        if op.family is BLOCK:
            blocks[op.output] = _absorb(_Block.of(op), blocks, ops, readers)
    return program.replace(ops=tuple(blocks[value].written() if value in blocks else op for value, op in ops.items()))


def _absorb(block: _Block, blocks: dict[Value, _Block], ops: dict[Value, Op], readers: dict[Value, set[Value | None]]) -> _Block:
    """Pull producers into `block` until none fits; absorbed ops leave `ops`."""
    unseen: set[Value] = set()
    output = block.op.output

    def may_be_absorbed(value: Value) -> bool:
        # Asked again after each merge: other readers may have been absorbed.
        if value not in blocks or value in unseen or value in block.too_large:
            return False
        return blocks[value].is_free or readers[value] == {output}

    while True:
        value = next((item.value for item in block.inputs if may_be_absorbed(item.value)), None)
        if value is None:
            return block
        producer = blocks[value]
        merged = block.with_producer(producer)
        if merged is None:
            unseen.add(value)
            continue
        fitting = merged.fitting()
        if fitting is None:
            block = dataclasses.replace(block, too_large=block.too_large | {value})
            continue
        block = fitting
        readers[value].discard(output)
        if not readers[value]:
            ops.pop(value, None)
        for item in producer.inputs:
            readers[item.value].add(output)
            if not readers[value]:
                readers[item.value].discard(value)


def with_producer(op: Op, producer: Op, repeated: bool = False) -> Op | None:
    """`op` with `producer` computed inside it, or None where a view cannot be seen through or the program would be too large.

    Only where `repeated` may it be computed several times, for `op` reads it through a broadcast.
    """
    merged = _Block.of(op).with_producer(_Block.of(producer), repeated)
    fitting = None if merged is None else merged.fitting()
    return None if fitting is None else fitting.written()


class _Nested(NamedTuple):
    """A program, and where its inputs come from: an input of the whole, or another program on inputs of the whole."""

    program: _Body
    sources: tuple[_Source, ...]


# Merged programs are nested, and written once: to write each would copy a chain again for each of its ops.
_Body = BlockProgram | _Nested
_Source = int | tuple[_Body, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Block:
    """A block op with those that it has absorbed.

    Attributes:
        op: what it was, or is as far as it is written.
        inputs: what it reads now.
        body: the program on these inputs.
        size: instructions in the body. Once it is written they may be fewer, for equal ones are written once.
        too_large: producers that did not fit into it, or into what it has absorbed: they do not fit into more either.
    """

    op: Op
    inputs: tuple[Operand, ...]
    body: _Body
    size: int
    too_large: frozenset[Value] = frozenset()

    @classmethod
    def of(cls, op: Op) -> _Block:
        assert op.program is not None
        return cls(op, op.inputs, op.program, len(op.program.instructions))

    @property
    def is_free(self) -> bool:
        """Whether it may be computed again by every reader."""
        return not self.inputs or (isinstance(self.body, BlockProgram) and self.body.is_plain_conversion)

    def with_producer(self, producer: _Block, repeated: bool = False) -> _Block | None:
        """The block with `producer` computed inside it, or None where a view cannot be seen through."""
        inputs: dict[Operand, int] = {}
        sources: list[_Source] = []
        for item in self.inputs:
            if item.value is not producer.op.output:
                sources.append(inputs.setdefault(item, len(inputs)))
                continue
            if not (repeated or producer.is_free) and (item.view.value_size != self.op.output.size or not _reads_each_once(item)):
                return None
            views = [source.view.compose(item.view) for source in producer.inputs]
            seen = [Operand(source.value, view) for source, view in zip(producer.inputs, views, strict=True) if view is not None]
            if len(seen) < len(views):
                return None
            sources.append((producer.body, tuple([inputs.setdefault(operand, len(inputs)) for operand in seen])))
        times = sum(not isinstance(source, int) for source in sources)
        merged = _Block(
            self.op,
            tuple(inputs),
            _Nested(self.body, tuple(sources)),
            self.size + times * producer.size,
            self.too_large | producer.too_large,
        )
        # A constant may take its reader's instructions away, and a copy may make of it a conversion: both show when written.
        return merged if self.size and producer.size else merged.rewritten()

    def fitting(self) -> _Block | None:
        """The block, written if need be; None where it would be too large."""
        if len(self.inputs) > MAX_INPUTS:
            return None
        block = self if self.size <= MAX_INSTRUCTIONS else self.rewritten()
        return block if block.size <= MAX_INSTRUCTIONS else None

    def rewritten(self) -> _Block:
        """The block with a body that is written."""
        return dataclasses.replace(_Block.of(self.written()), too_large=self.too_large)

    def written(self) -> Op:
        """The op with all that it has absorbed as one program."""
        if isinstance(self.body, BlockProgram):
            return self.op
        block = BlockBuilder(len(self.inputs))
        program = block.build(_write(block, self.body, range(len(self.inputs))))
        return self.op.replace(inputs=self.inputs, program=program)


def _write(block: BlockBuilder, body: _Body, inputs: Sequence[Ref]) -> Ref:
    """Writes a body with its inputs bound; returns the register of its result."""
    if isinstance(body, BlockProgram):
        return block.splice(body, inputs)
    given = [
        inputs[source] if isinstance(source, int) else _write(block, source[0], [inputs[index] for index in source[1]])
        for source in body.sources
    ]
    return _write(block, body.program, given)


def _reads_each_once(operand: Operand) -> bool:
    """Whether no element is read twice: the view only reshapes and permutes."""
    return all(dim.source >= 0 or dim.extent == 1 for dim in operand.view.dims)
