"""Makes one row program of each cluster of reductions over the same axes and element-wise ops around them.

Softmax, normalisations, logsumexp, cross entropy and whatever else is written as element-wise ops and reductions along rows
becomes one op, without looking for a formula: what is clustered is whatever has the same rows. The pass runs after `fuse`, so
that an element-wise op is already one block, and before `epilogue`, so that a block becomes a stage of its rows rather than the
epilogue of another op that it also reads.

It pays where a row is read more than once: reductions of an op's own result, or a reduction and an element-wise op over what it
reduces. A reduction with nothing of full size beside it stays with the kernel `reduce`.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.block import BLOCK, program_flops
from aspen_jax.ops.block_program import COPY, BlockBuilder, BlockProgram, single
from aspen_jax.ops.opcodes import LANE_DTYPES, OPCODES, lane_of
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.row_program import MAX_REGISTERS, NUMBER, ROW, RowProgram, Stage
from aspen_jax.ops.rows import ROWS, RowsAttrs
from aspen_jax.passes.edited import Edited
from aspen_jax.passes.fuse import with_producer

# Beyond these a block of all inputs no longer fits L1, or one program no longer pays.
MAX_INPUTS = 24
MAX_STAGES = 32

# A tile holds whole rows: fewer rows than this keep workers idle, unless they are no more work together than a tile.
MIN_ROWS = 8
MAX_SIZE_OF_FEW = 1 << 16

# A worker keeps a few rows in its scratch memory: one, or as many as a cache line holds where neighbouring rows are adjacent.
MAX_LENGTH = 1 << 20
MAX_LENGTH_ACROSS = 1 << 14

# What is read again is computed again if that takes no more flops, else kept for the row.
MAX_REPEATED_FLOPS = 3


def run(program: Program) -> Program:
    """Cluster around each reduction in turn."""
    edited = Edited(program)
    for place in range(len(program.ops)):
        seed = edited.ops.get(place)
        if seed is None or seed.family is not REDUCE or seed.attrs.kind >= ROW:
            continue
        space = Space.of(seed)
        if space is None:
            continue
        before, needed = _without_parts(edited, space, seed)
        found = _Search(edited, needed, space, seed).rewrite()
        if before and not found:
            edited.replace([edited.ops[place] for place in before if place in edited.ops], before)
            _Search(edited, frozenset(), space, seed).rewrite()
    return edited.program()


@dataclasses.dataclass(frozen=True)
class Space:
    """The rows that a cluster works on: all elements have the shape `full`, and what is known once a row has `kept`."""

    full: tuple[int, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, reduction: Op) -> Space | None:
        """The rows of a reduction; None where they are not worth a program."""
        space = cls(reduction.inputs[0].shape, reduction.attrs.axes)
        across = any(extent > 1 and axis > max(space.axes, default=0) for axis, extent in enumerate(space.full))
        many = space.rows >= MIN_ROWS or space.rows * space.length <= MAX_SIZE_OF_FEW
        return space if space.rows and many and 1 < space.length <= (MAX_LENGTH_ACROSS if across else MAX_LENGTH) else None

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(extent for axis, extent in enumerate(self.full) if axis not in self.axes)

    @property
    def rows(self) -> int:
        return math.prod(self.kept)

    @property
    def length(self) -> int:
        return math.prod(self.full[axis] for axis in self.axes)

    def runs(self) -> list[tuple[bool, int]]:
        """The dimensions from the outermost, (in a row, extent), neighbours of one kind joined: equal for equal rows."""
        runs: list[tuple[bool, int]] = []
        for axis, extent in enumerate(self.full):
            if runs and runs[-1][0] == (axis in self.axes):
                runs[-1] = (runs[-1][0], runs[-1][1] * extent)
            elif extent > 1:
                runs.append((axis in self.axes, extent))
        return runs

    def kind_of(self, op: Op) -> int | None:
        """What the op's result is to the rows: a reduction's kind, ROW or NUMBER; None where it has nothing to do with them."""
        if op.program is None and op.family is REDUCE and op.attrs.kind < ROW:
            own = Space(op.inputs[0].shape, op.attrs.axes)
            return op.attrs.kind if own.runs() == self.runs() else None
        kind = {self.rows: NUMBER, self.rows * self.length: ROW}.get(op.output.size)
        if kind is None or op.family is not BLOCK or any(lane_of(item.dtype) is None for item in (*op.inputs, op.output)):
            return None
        return kind

    def seen(self, kind: int, view: View) -> View | None:
        """How an op of this kind sees a value, over all elements of the rows (over the rows for a NUMBER)."""
        return view.reshape(self.kept if kind == NUMBER else self.full)

    def spread(self, view: View) -> View:
        """A view over the rows, over all their elements."""
        return view.broadcast_in_dim(self.full, [axis for axis in range(len(self.full)) if axis not in self.axes])

    def reads(self, reader: int, view: View, source: int) -> bool:
        """Whether an op of kind `reader` sees the result of one of kind `source` where it belongs."""
        seen = self.seen(reader, view)
        if source == ROW:
            return reader != NUMBER and seen == View.identity(self.full)
        whole = View.identity(self.kept)
        return seen == whole if reader == NUMBER else reader == ROW and seen == self.spread(whole)


def _without_parts(edited: Edited, space: Space, seed: Op) -> tuple[dict[int, Op], frozenset[Value]]:
    """Takes out the ops between numbers and full rows (the scale of a channel over the deviation of its group).

    They are computed for each element instead, but for what depends on the row alone (`_Writer`). Returned are the ops that were
    there before, and the results of the ops that compute them now. Those see their inputs over all elements of the rows and so
    must become part of a row program.
    """
    before: dict[int, Op] = {}
    needed: set[Value] = set()
    for part in reversed(_parts(edited, space, seed)):
        readers = dict.fromkeys(reader for reader, _ in edited.uses(part.output))
        if any(reader is None or space.kind_of(reader) != ROW for reader in readers):
            continue
        merged: dict[int, Op] = {}
        for reader in filter(None, readers):
            seen = _over_rows(reader, space)
            op = None if seen is None else with_producer(seen, part, repeated=True)
            if op is not None:
                merged[edited.places[op.output]] = op
        if len(merged) == len(readers):
            old = {edited.places[op.output]: op for op in (part, *filter(None, readers))}
            before = old | before
            needed.update(op.output for op in merged.values())
            edited.replace(old.values(), merged)
    return before, frozenset(needed)


def _parts(edited: Edited, space: Space, seed: Op) -> list[Op]:
    """The smaller blocks that depend on the seed through nothing but ops on its rows and each other, in program order."""
    parts: list[Op] = []
    waiting = [edited.places[seed.output]]
    found = set(waiting)
    while waiting:
        op = edited.ops[heapq.heappop(waiting)]
        if space.kind_of(op) is None:
            if op.family is not BLOCK or op.output.size >= space.rows * space.length:
                continue
            parts.append(op)
        for reader, _ in edited.uses(op.output):
            if reader is not None and (place := edited.places[reader.output]) not in found:
                found.add(place)
                heapq.heappush(waiting, place)
    return parts


def _over_rows(op: Op, space: Space) -> Op | None:
    """A block op with its inputs seen over all elements of the rows; None where no view can say it."""
    views = [space.seen(ROW, item.view) for item in op.inputs]
    if any(view is None for view in views):
        return None
    return op.replace(inputs=tuple(Operand(item.value, view) for item, view in zip(op.inputs, views, strict=True) if view))


class _Search:
    """Finds the ops that can become one row program with a reduction."""

    def __init__(self, edited: Edited, needed: frozenset[Value], space: Space, seed: Op):
        self.edited, self.needed, self.space, self.seed = edited, needed | {seed.output}, space, seed

    def rewrite(self) -> bool:
        """Makes one op of the largest cluster around the seed; returns whether there is one."""
        for last in sorted(self._followers(), key=lambda op: -self.edited.places[op.output]):
            cluster = self._cluster(last)
            if not self.needed <= cluster.keys() or not self._pays(cluster):
                continue
            op = _Writer(self.space, cluster, self.edited).write()
            if op is not None:
                # Its result may have another shape, which its readers' views do not mind.
                self.edited.replace(cluster.values(), {self.edited.places[last.output]: op})
                self.edited.rename(last.output, op.output)
                return True
        return False

    def _followers(self) -> list[Op]:
        """The seed, and the ops on the same rows that depend on it through nothing but ops that only such ops read."""
        found = {self.seed.output: self.seed}
        pending = [self.seed]
        while pending:
            op = pending.pop()
            uses = self.edited.uses(op.output)
            readers = [reader for reader, index in uses if reader and self._connects(op, reader, index)]
            if len(readers) < len(uses):
                continue  # who reads it from outside needs it to be the last
            for reader in readers:
                if reader.output not in found:
                    found[reader.output] = reader
                    pending.append(reader)
        return list(found.values())

    def _connects(self, op: Op, reader: Op, index: int) -> bool:
        source, kind = self.space.kind_of(op), self.space.kind_of(reader)
        return source is not None and kind is not None and self.space.reads(kind, reader.inputs[index].view, source)

    def _cluster(self, last: Op) -> dict[Value, Op]:
        """The most ops whose results nothing reads but `last`, through each other; in program order."""
        cluster: dict[Value, Op] = {last.output: last}
        waiting = self._feeding(last)
        while waiting:  # the latest first: then all its readers have been judged
            latest = max(waiting)
            waiting.remove(latest)
            op = self.edited.ops[latest]
            inside = all(
                reader is not None and reader.output in cluster and self._connects(op, reader, index)
                for reader, index in self.edited.uses(op.output)
            )
            if inside and self._fits(op) and not self._is_epilogue(op):
                cluster[op.output] = op
                waiting |= self._feeding(op)
        return dict(reversed(cluster.items()))

    def _feeding(self, op: Op) -> set[int]:
        """Places of the ops whose results the op reads."""
        return {self.edited.places[item.value] for item in op.inputs if item.value in self.edited.places}

    def _fits(self, op: Op) -> bool:
        kind = self.space.kind_of(op)
        return kind is not None and all(self.space.seen(kind, item.view) is not None for item in op.inputs)

    def _is_epilogue(self, op: Op) -> bool:
        """Whether the block is better computed where one of its inputs is."""
        return op.family is BLOCK and any(
            (producer := self.edited.producer(item.value)) is not None
            and producer.family.takes_epilogue
            and producer.family is not REDUCE
            and item.is_whole
            and item.shape == op.output.shape
            and len(self.edited.uses(item.value)) == 1
            for item in op.inputs
        )

    def _pays(self, cluster: dict[Value, Op]) -> bool:
        kinds = [self.space.kind_of(op) for op in cluster.values()]
        return ROW in kinds or sum(kind != NUMBER for kind in kinds) > 1


# A register of the row program under construction: an input, or the stage of a number.
_Leaf = Operand | int


@dataclasses.dataclass(frozen=True)
class _Expression:
    """A value inside the cluster: a block program over leaves. Reading it computes it."""

    leaves: tuple[_Leaf, ...]
    program: BlockProgram


class _Writer:
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
        program, leaves = expression.program, expression.leaves
        first = program.num_inputs + len(program.constants)
        once = [not isinstance(leaf, Operand) and self._stages[leaf][0] != ROW for leaf in leaves]
        # Constants belong to whoever reads them.
        once += [True] * len(program.constants)
        once_only = list(once)
        for _, args in program.instructions:
            once.append(all(once[arg] for arg in args))
            once_only.append(once[-1] and any(once_only[arg] and not len(leaves) <= arg < first for arg in args))
        tops = {arg for index, (_, args) in enumerate(program.instructions) if not once[first + index] for arg in args}
        tops = sorted(top for top in tops | {program.result} if top >= first and once_only[top])
        if not tops:
            return expression
        known: dict[int, int] = {}
        for top in tops:
            opcode = program.instructions[top - first].opcode
            lane = OPCODES[opcode].lanes[-1]
            if lane not in "fi":
                continue
            sub = _joined(dataclasses.replace(program, result=top), [_Expression((leaf,), COPY) for leaf in leaves])
            self._stages.append((NUMBER, LANE_DTYPES[lane], sub))
            known[top] = len(self._stages) - 1
        operands = [*leaves, *known.values()]
        block = BlockBuilder(len(operands))
        refs = [block.input(index) for index in range(len(leaves))]
        refs += block.constants(program.constants)
        for index, (opcode, args) in enumerate(program.instructions):
            if first + index in known:
                refs.append(block.input(operands.index(known[first + index], len(leaves))))
            else:
                refs.append(block.emit(opcode, *(refs[arg] for arg in args)))
        return _joined(block.build(refs[program.result]), [_Expression((leaf,), COPY) for leaf in operands])

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
