"""Fuses chains of block ops into one block program each, so that intermediates stay in L1 (BrainSlug, section 4.1)."""

from __future__ import annotations

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockBuilder, Ref

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
    blocks: dict[Value, Op] = {}
    ops: dict[Value, Op] = {}
    for op in program.ops:
        if op.family is BLOCK:
            op = _absorb(op, blocks, ops, readers)
            blocks[op.output] = op
        ops[op.output] = op
    return program.replace(ops=tuple(ops.values()))


def _absorb(op: Op, blocks: dict[Value, Op], ops: dict[Value, Op], readers: dict[Value, set[Value | None]]) -> Op:
    """Pull producers into `op` until none fits; absorbed ops leave `ops`."""
    rejected: set[Value] = set()

    def may_be_absorbed(value: Value) -> bool:
        # Asked again after each merge: other readers may have been absorbed.
        if value not in blocks or value in rejected:
            return False
        return _is_free(blocks[value]) or readers[value] == {op.output}

    while True:
        value = next((item.value for item in op.inputs if may_be_absorbed(item.value)), None)
        if value is None:
            return op
        producer = blocks[value]
        merged = with_producer(op, producer)
        if merged is None:
            rejected.add(value)
            continue
        op = merged
        readers[value].discard(op.output)
        if not readers[value]:
            ops.pop(value, None)
        for item in producer.inputs:
            readers[item.value].add(op.output)
            if not readers[value]:
                readers[item.value].discard(value)


def with_producer(op: Op, producer: Op, repeated: bool = False) -> Op | None:
    """`op` with `producer` computed inside it, or None where a view cannot be seen through or the program would be too large.

    Only where `repeated` may it be computed several times, for `op` reads it through a broadcast.
    """
    assert op.program is not None
    assert producer.program is not None
    inputs: dict[Operand, int] = {}
    sources: list[list[Operand] | int] = []
    for item in op.inputs:
        if item.value is not producer.output:
            sources.append(inputs.setdefault(item, len(inputs)))
            continue
        if not (repeated or _is_free(producer)) and (item.view.value_size != op.output.size or not _reads_each_once(item)):
            return None
        seen = []
        for source in producer.inputs:
            view = source.view.compose(item.view)
            if view is None:
                return None
            seen.append(Operand(source.value, view))
        for operand in seen:
            inputs.setdefault(operand, len(inputs))
        sources.append(seen)
    if len(inputs) > MAX_INPUTS:
        return None
    block = BlockBuilder(len(inputs))
    refs: list[Ref] = []
    for source in sources:
        if isinstance(source, int):
            refs.append(block.input(source))
        else:
            refs.append(block.splice(producer.program, [block.input(inputs[operand]) for operand in source]))
    merged = block.build(block.splice(op.program, refs))
    if len(merged.instructions) > MAX_INSTRUCTIONS:
        return None
    return op.replace(inputs=tuple(inputs), program=merged, name=op.name)


def _is_free(producer: Op) -> bool:
    """Whether the op may be computed again by every reader."""
    return not producer.inputs or (producer.program is not None and producer.program.is_plain_conversion)


def _reads_each_once(operand: Operand) -> bool:
    """Whether no element is read twice: the view only reshapes and permutes."""
    return all(dim.source >= 0 or dim.extent == 1 for dim in operand.view.dims)
