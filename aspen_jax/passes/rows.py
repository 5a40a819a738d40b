"""Makes one row program of each cluster of reductions over the same axes and element-wise ops around them.

Softmax, normalisations, logsumexp, cross entropy and whatever else is written as element-wise ops and reductions along rows
becomes one op, without looking for a formula: what is clustered is whatever has the same rows. The pass runs after `fuse`, so
that an element-wise op is already one block, and before `epilogue`, so that a block becomes a stage of its rows rather than the
epilogue of another op that it also reads.

It pays where a row is read more than once: reductions of an op's own result, or a reduction and an element-wise op over what it
reduces. A reduction with nothing of full size beside it stays with the kernel `reduce`.
"""

from __future__ import annotations

import heapq

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.row_program import NUMBER, ROW
from aspen_jax.passes.edited import Edited
from aspen_jax.passes.fuse import with_producer
from aspen_jax.passes.row_space import Space
from aspen_jax.passes.row_writer import RowWriter


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


def _without_parts(edited: Edited, space: Space, seed: Op) -> tuple[dict[int, Op], frozenset[Value]]:
    """Takes out the ops between numbers and full rows (the scale of a channel over the deviation of its group).

    They are computed for each element instead, but for what depends on the row alone (`RowWriter`). Returned are the ops that
    were there before, and the results of the ops that compute them now. Those see their inputs over all elements of the rows
    and so must become part of a row program.
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
        for last in sorted(filter(self._fits, self._followers()), key=lambda op: -self.edited.places[op.output]):
            cluster = self._cluster(last)
            if not self.needed <= cluster.keys() or not self._pays(cluster):
                continue
            op = RowWriter(self.space, cluster, self.edited).write()
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
