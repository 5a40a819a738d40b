"""Writes the row program of a cluster of ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from aspen_jax.ir.program import Op, Operand, Value
from aspen_jax.ops.block import program_flops
from aspen_jax.ops.block_program import COPY, BlockBuilder, BlockProgram, single
from aspen_jax.ops.opcodes import LANE_DTYPES, OPCODES, lane_of
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.row_program import MAX_REGISTERS, NUMBER, ROW, RowProgram, Stage
from aspen_jax.ops.rows import ROWS, RowsAttrs
from aspen_jax.passes.edited import Edited
from aspen_jax.passes.row_space import Space

# Beyond these a block of all inputs no longer fits L1, or one program no longer pays.
MAX_INPUTS = 24
MAX_STAGES = 32

# What is read again is computed again if that takes no more flops, else kept for the row.
MAX_REPEATED_FLOPS = 3


# A register of the row program under construction: an input, or the stage of a number.
_Leaf = Operand | int


@dataclasses.dataclass(frozen=True)
class _Expression:
    """A value inside the cluster: a block program over leaves. Reading it computes it."""

    leaves: tuple[_Leaf, ...]
    program: BlockProgram


class RowWriter:
    """Writes the row program of a cluster."""

    def __init__(self, space: Space, cluster: dict[Value, Op], edited: Edited):
        self._space, self._cluster, self._edited = space, cluster, edited
        self._known: dict[Value, _Expression] = {}
        self._stages: list[tuple[int, np.dtype, _Expression]] = []

    def write(self) -> Op | None:
        """The op; None where it would have too many inputs or stages."""
        *ops, last = self._cluster.values()
        for op in ops:
            self._known[op.output] = self._value(op)
        kind, expression, dtype = self._space.kind_of(last), self._expression(last), last.output.dtype
        assert kind is not None
        if kind < ROW:
            expression, kind = self._kept(kind, expression, dtype), NUMBER
        self._append(kind, dtype, expression)
        self._drop_unread()

        leaves = dict.fromkeys(leaf for _, _, item in self._stages for leaf in item.leaves if isinstance(leaf, Operand))
        inputs = {leaf: index for index, leaf in enumerate(leaves)}
        if not inputs or len(inputs) > MAX_INPUTS or not len(self._stages) <= min(MAX_STAGES, MAX_REGISTERS - len(inputs)):
            return None
        stages = []
        for index, (kind, dtype, item) in enumerate(self._stages):
            block = BlockBuilder(len(inputs) + index)
            refs = [block.input(inputs[leaf] if isinstance(leaf, Operand) else len(inputs) + leaf) for leaf in item.leaves]
            stages.append(Stage(kind, dtype, block.build(block.splice(item.program, refs))))
        attrs = RowsAttrs(self._space.axes, RowProgram(len(inputs), tuple(stages)))
        shape, dtype = ROWS.infer(attrs, [(item.shape, item.dtype) for item in inputs])
        names = dict.fromkeys(op.name for op in self._cluster.values() if op.family is REDUCE) | {last.name: None}
        return Op(ROWS, attrs, tuple(inputs), Value(shape, dtype), None, " + ".join(names), last.source)

    def _value(self, op: Op) -> _Expression:
        """What reads the op's result: the op itself if that costs little, else what a stage has kept of it."""
        kind, expression = self._space.kind_of(op), self._expression(op)
        assert kind is not None
        if kind == ROW:
            full = sum(self._is_full(leaf) for leaf in expression.leaves)
            if len(self._edited.uses(op.output)) == 1 or (full < 2 and program_flops(expression.program) <= MAX_REPEATED_FLOPS):
                return expression
        return self._kept(kind, expression, op.output.dtype)

    def _is_full(self, leaf: _Leaf) -> bool:
        if isinstance(leaf, Operand):
            return leaf.value.size >= self._space.rows * self._space.length
        return self._stages[leaf][0] == ROW

    def _kept(self, kind: int, expression: _Expression, dtype: np.dtype) -> _Expression:
        """The result of a new stage. Bools are kept as integers: or is their maximum, and is their minimum."""
        lane = lane_of(dtype)
        if lane == "b":
            expression = _joined(single("i_from_b"), [expression])
        self._append(kind, np.dtype(np.float32 if lane == "f" else np.int32), expression)
        stage = _Expression((len(self._stages) - 1,), COPY)
        return _joined(single("b_from_i"), [stage]) if lane == "b" else stage

    def _append(self, kind: int, dtype: np.dtype, expression: _Expression) -> None:
        """Add a stage; what depends on the row alone becomes a stage of its own, so that it is computed once."""
        self._stages.append((kind, dtype, expression if kind == NUMBER else self._hoisted(expression)))

    def _hoisted(self, expression: _Expression) -> _Expression:
        """The expression, with what depends on the row alone read from stages."""
        program, leaves = expression.program, [_Expression((leaf,), COPY) for leaf in expression.leaves]
        first = program.num_inputs + len(program.constants)
        known: dict[int, _Expression] = {}
        for register in self._of_row_alone(expression):
            lane = OPCODES[program.instructions[register - first].opcode].lanes[-1]
            if lane in "fi":
                self._stages.append((NUMBER, LANE_DTYPES[lane], _joined(dataclasses.replace(program, result=register), leaves)))
                known[register] = _Expression((len(self._stages) - 1,), COPY)
        if not known:
            return expression
        block = BlockBuilder(len(leaves) + len(known))
        given = [block.input(index) for index in range(len(leaves) + len(known))]
        stages = dict(zip(known, given[len(leaves) :], strict=True))
        refs = [*given[: len(leaves)], *block.constants(program.constants)]
        for register, (opcode, args) in enumerate(program.instructions, first):
            refs.append(stages[register] if register in stages else block.emit(opcode, *(refs[arg] for arg in args)))
        return _joined(block.build(refs[program.result]), [*leaves, *known.values()])

    def _of_row_alone(self, expression: _Expression) -> list[int]:
        """Registers that numbers of the row decide, and that instructions on full rows or the caller read; in order."""
        program = expression.program
        numbers = [not isinstance(leaf, Operand) and self._stages[leaf][0] != ROW for leaf in expression.leaves]
        # Constants decide nothing; they belong to whoever reads them.
        decided, free = [*numbers, *(False for _ in program.constants)], [*numbers, *(True for _ in program.constants)]
        read = {program.result}
        for _, args in program.instructions:
            free.append(all(free[arg] for arg in args))
            decided.append(free[-1] and any(decided[arg] for arg in args))
            if not free[-1]:
                read.update(args)
        return sorted(register for register in read if register >= program.num_inputs and decided[register])

    def _drop_unread(self) -> None:
        """Leave out the stages that no later one reads."""
        read = {len(self._stages) - 1}
        for index in reversed(range(len(self._stages))):
            if index in read:
                read.update(leaf for leaf in self._stages[index][2].leaves if not isinstance(leaf, Operand))
        order = {old: new for new, old in enumerate(sorted(read))}
        stages = [self._stages[index] for index in order]
        self._stages = []
        for kind, dtype, item in stages:
            leaves = tuple(leaf if isinstance(leaf, Operand) else order[leaf] for leaf in item.leaves)
            self._stages.append((kind, dtype, dataclasses.replace(item, leaves=leaves)))

    def _expression(self, op: Op) -> _Expression:
        """The op over leaves, without what a reduction does with it."""
        kind = self._space.kind_of(op)
        assert kind is not None
        operands = [self._known.get(item.value) or self._outside(kind, item) for item in op.inputs]
        if op.family is REDUCE:
            return operands[0]
        assert op.program is not None
        return _joined(op.program, operands)

    def _outside(self, kind: int, operand: Operand) -> _Expression:
        view = self._space.seen(kind, operand.view)
        assert view is not None
        leaf = Operand(operand.value, self._space.spread(view) if kind == NUMBER else view)
        return _Expression((leaf,), COPY)


def _joined(program: BlockProgram, operands: Sequence[_Expression]) -> _Expression:
    """A program on expressions."""
    leaves = {leaf: index for index, leaf in enumerate(dict.fromkeys(leaf for item in operands for leaf in item.leaves))}
    block = BlockBuilder(len(leaves))
    refs = [block.splice(item.program, [block.input(leaves[leaf]) for leaf in item.leaves]) for item in operands]
    joined = block.build(block.splice(program, refs))
    read = {joined.result, *(register for instruction in joined.instructions for register in instruction.args)}
    kept = [leaf for leaf, register in leaves.items() if register in read]
    block = BlockBuilder(len(kept))
    result = block.splice(joined, [block.input(kept.index(leaf) if leaf in kept else 0) for leaf in leaves])
    return _Expression(tuple(kept), block.build(result))
