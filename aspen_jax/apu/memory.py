"""Memory: where values lie in the workspace, and the edges that make its reuse safe in every order of execution.

Placement walks the ops in order and hands the space of dead values on, that which died first first, so that the new edges point
to tiles that mostly have run. Space changes hands byte range by byte range: each byte knows the last value that held it, and the
tiles that write the next value there wait for those that touched the last.

An op in place puts its output where its operand lies, in the workspace or outside. Each of its tiles reads there just what it
writes, so the data's edges order it after those that wrote the operand; it waits for all others that read that, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aspen_jax.apu.dependencies import Read
from aspen_jax.apu.grid import Grid
from aspen_jax.graph.dag import Dag, expand, unique
from aspen_jax.ir.program import Op, Program, Value

ALIGNMENT = 64

# Smaller values keep their space to themselves: they are parameters worked out early, which should not wait for others to die.
_SMALLEST_REUSED = 1 << 15

_ENDLESS = 1 << 62


class Touches(NamedTuple):
    """Tiles and the bytes [lo, hi) of a buffer that they may touch; arrays of one length."""

    tiles: np.ndarray
    lo: np.ndarray
    hi: np.ndarray

    def within(self, lo: int, hi: int) -> Touches:
        """The accesses to bytes of [lo, hi), cut to it."""
        cut_lo, cut_hi = np.maximum(self.lo, lo), np.minimum(self.hi, hi)
        kept = cut_lo < cut_hi
        return Touches(self.tiles[kept], cut_lo[kept], cut_hi[kept])

    def moved(self, offset: int) -> Touches:
        """The accesses of a value that begins at `offset`."""
        return Touches(self.tiles, self.lo + offset, self.hi + offset)

    @classmethod
    def join(cls, parts: Sequence[Touches]) -> Touches:
        """The accesses of all, one after the other."""
        if not parts:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def touches(value: Value, tiles: np.ndarray, boxes: np.ndarray) -> Touches:
    """The first and the last byte of each box, counted from the value's first; boxes are not empty."""
    lo = np.zeros(len(boxes), np.int64)
    last = np.zeros(len(boxes), np.int64)
    for d, extent in enumerate(value.shape):
        lo = lo * extent + boxes[:, d, 0]
        last = last * extent + boxes[:, d, 1] - 1
    size = value.dtype.itemsize
    return Touches(tiles, lo * size, (last + 1) * size)


class _Meeting(NamedTuple):
    """Two lists of byte ranges, the second by ascending start, and for each of the first the candidates [first, last)."""

    early: Touches
    late: Touches
    first: np.ndarray
    last: np.ndarray

    @property
    def num_candidates(self) -> int:
        return int((self.last - self.first).sum())

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """(early tile, late tile) of all ranges that share a byte."""
        row, position = expand(self.last - self.first)
        other = self.first[row] + position
        meet = self.late.hi[other] > self.early.lo[row]
        return self.early.tiles[row[meet]], self.late.tiles[other[meet]]


def _meet(early: Touches, late: Touches) -> _Meeting:
    order = np.argsort(late.lo, kind="stable")
    late = Touches(*(array[order] for array in late))
    # Ends need not ascend with starts, but their running maximum does: nothing before it reaches into the range.
    first = np.searchsorted(np.maximum.accumulate(late.hi), early.lo, "right")
    last = np.searchsorted(late.lo, early.hi, "left")
    return _Meeting(early, late, first, np.maximum(first, last))


def overlapping(early: Touches, late: Touches) -> tuple[np.ndarray, np.ndarray]:
    """(early tile, late tile) of all ranges that share a byte; pairs may repeat."""
    return _meet(early, late).pairs()


class _Block(NamedTuple):
    """Free bytes [lo, hi) and the op after which they were given back."""

    lo: int
    hi: int
    since: int


class Held(NamedTuple):
    """Bytes [lo, hi) that were last given to a value."""

    lo: int
    hi: int
    value: Value


class Holders:
    """Which value each byte of the workspace was last given to."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    def within(self, lo: int, hi: int) -> list[Held]:
        """The values that bytes of [lo, hi) were last given to, with those bytes."""
        return [Held(max(lo, item.lo), min(hi, item.hi), item.value) for item in self._held if item.lo < hi and lo < item.hi]

    def give(self, lo: int, hi: int, value: Value) -> None:
        """Bytes [lo, hi) now belong to `value`."""
        kept = [item for item in self._held if item.hi <= lo or hi <= item.lo]
        cut = [item for item in self._held if item.lo < hi and lo < item.hi]
        rest = [part for item in cut for part in (item._replace(hi=min(item.hi, lo)), item._replace(lo=max(item.lo, hi)))]
        self._held = kept + [part for part in rest if part.lo < part.hi] + [Held(lo, hi, value)]


class _FreeSpace:
    """Which bytes of the workspace no living value needs."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks = [_Block(0, _ENDLESS, -1)]

    def offers(self, need: int) -> list[int]:
        """Offsets where `need` bytes are free: space that was given back first comes first, untouched space last."""
        fitting = [block for block in self._blocks if block.hi - block.lo >= need]
        fitting.sort(key=lambda block: (block.hi == _ENDLESS, block.since))
        return [block.lo for block in fitting] + [self.size]

    def take(self, lo: int, hi: int) -> None:
        block = next(block for block in self._blocks if block.lo <= lo and hi <= block.hi)
        self._blocks.remove(block)
        self._blocks += [part for part in (block._replace(hi=lo), block._replace(lo=hi)) if part.lo < part.hi]
        self.size = max(self.size, hi)

    def give_back(self, lo: int, hi: int, now: int) -> None:
        """Free bytes [lo, hi), joining them with their free neighbours."""
        joined = [block for block in self._blocks if block.hi == lo or block.lo == hi]
        self._blocks = [block for block in self._blocks if block not in joined]
        self._blocks.append(_Block(min([lo, *(b.lo for b in joined)]), max([hi, *(b.hi for b in joined)]), now))


class Memory(NamedTuple):
    """Where values lie and what that demands.

    Attributes:
        offsets: of each value in the workspace; a value without bytes has none.
        size: of the workspace, in bytes.
        before, after: pairs of tiles that reuse has to order beside the data's edges.
    """

    offsets: dict[Value, int]
    size: int
    before: np.ndarray
    after: np.ndarray


def rewritten(op: Op) -> Value:
    """The value in whose memory an op in place writes its output.

    Raises:
        ValueError: it has none.
    """
    operand = op.family.rewritten(op)
    if operand is None:
        raise ValueError(f"{op.name} has no operand that it may rewrite in place")
    return operand.value


def result_chains(program: Program) -> dict[Value, list[Value]]:
    """What lies, one after the other, in the buffer of each result; the last is the result.

    The first is an input of the program where an op in place rewrites that: one memory of the caller's may then be both.

    Raises:
        ValueError: an op in place rewrites what is needed afterwards.
    """
    before = {op.output: rewritten(op) for op in program.ops if op.in_place}
    chains = {operand.value: [operand.value] for operand in program.outputs}
    for chain in chains.values():
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
    firsts = {chain[0] for chain in chains.values()}
    lasting = {*chains, *(value for value, _ in program.constants), *program.inputs} - (firsts & {*program.inputs})
    if len(set(before.values())) < len(before) or not lasting.isdisjoint(before.values()):
        raise ValueError("an op in place rewrites what is needed afterwards; run passes.in_place last")
    return chains


def place(
    ops: Sequence[Op],
    outside: set[Value],
    reads: Sequence[Sequence[Read]],
    grids: dict[Value, Grid],
    data: Dag,
    reuse: bool,
    most_edges: int,
) -> Memory:
    """Place the outputs of each op in the workspace.

    Args:
        ops: in topological order.
        outside: outputs that have a buffer of their own, and what ops in place write there before.
        reads: for each op, what its tiles read.
        grids: the tiles of each op's output.
        data: the edges between tiles that the data demands.
        reuse: whether values may lie where dead ones were.
        most_edges: a tile that reuse may need; where it would need more, a value gets fresh space instead.

    Raises:
        ValueError: something reads the operand of an op in place after it.
    """
    accesses = _accesses(ops, outside, reads, grids)
    workspace = _Workspace(accesses, most_edges)
    for index, op in enumerate(ops):
        if op.in_place:
            workspace.rewrite(op, grids[op.output])
        for value in op.further if op.in_place else op.outputs:
            if value in accesses.writing:
                workspace.put(value)
        if reuse:
            workspace.give_back(accesses.dying[index], index)
    return Memory(workspace.offsets, workspace.size, *workspace.missing_order(data))


class _Accesses(NamedTuple):
    """What tiles do with values.

    Attributes:
        writing: bytes that they write of each value that is to be placed.
        reading: bytes that they read of those, and of what ops in place rewrite; the rewriting itself is left out.
        dying: for each op the values that nothing needs after it.
    """

    writing: dict[Value, Touches]
    reading: dict[Value, list[Touches]]
    dying: list[list[Value]]


def _accesses(ops: Sequence[Op], outside: set[Value], reads: Sequence[Sequence[Read]], grids: dict[Value, Grid]) -> _Accesses:
    writing = {
        value: touches(value, grid.tiles, grid.boxes) for value, grid in grids.items() if value.nbytes and value not in outside
    }
    rewriting = {rewritten(op): index for index, op in enumerate(ops) if op.in_place}
    reading: dict[Value, list[Touches]] = {value: [] for value in (*writing, *rewriting)}
    last_use = {value: index for index, op in enumerate(ops) for value in op.outputs if value in writing}
    for index, op_reads in enumerate(reads):
        for value, tiles, boxes in op_reads:
            if index > rewriting.get(value, index):
                raise ValueError(f"{ops[index].name} reads what {ops[rewriting[value]].name} rewrites before it")
            if value in reading and rewriting.get(value) != index:
                reading[value].append(touches(value, tiles, boxes))
            if value in writing:
                last_use[value] = index
    dying: list[list[Value]] = [[] for _ in ops]
    for value, index in last_use.items():
        if value not in rewriting:  # whose space the op in place takes on
            dying[index].append(value)
    return _Accesses(writing, reading, dying)


class _Workspace:
    """Values placed one after the other, and the tiles that must wait for others so that each finds its bytes free."""

    def __init__(self, accesses: _Accesses, most_edges: int):
        self.offsets: dict[Value, int] = {}
        self._accesses, self._most_edges = accesses, most_edges
        self._free, self._holders = _FreeSpace(), Holders()
        self._after_writes: list[_Meeting] = []
        self._after_reads: list[_Meeting] = []

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return self._free.size

    def rewrite(self, op: Op, grid: Grid) -> None:
        """Puts the first output of an op in place where its operand lies."""
        operand = rewritten(op)
        claims = touches(op.output, grid.tiles, grid.boxes)
        self._after_reads += [_meet(part, claims) for part in self._accesses.reading[operand]]
        if op.output in self._accesses.writing:
            self._hold(op.output, self.offsets[operand])

    def put(self, value: Value) -> None:
        """Puts a value where few enough tiles must wait for others; small ones where nothing was."""
        size = aligned(value.nbytes)
        for offset in [self.size] if value.nbytes < _SMALLEST_REUSED else self._free.offers(size):
            claims = self._accesses.writing[value].moved(offset)
            writes, uses = self._meetings(claims, offset, offset + value.nbytes)
            tiles = len(claims.tiles) + sum(len(meeting.early.tiles) for meeting in writes + uses)
            if sum(meeting.num_candidates for meeting in writes + uses) <= self._most_edges * tiles:
                break
        else:
            raise AssertionError("untouched space needs no edges")
        self._after_writes += writes
        self._after_reads += uses
        self._free.take(offset, offset + size)
        self._hold(value, offset)

    def _meetings(self, claims: Touches, lo: int, hi: int) -> tuple[list[_Meeting], list[_Meeting]]:
        """Meetings with tiles that write, and with tiles that read, what lay in bytes [lo, hi) before."""
        writes: list[_Meeting] = []
        uses: list[_Meeting] = []
        for first, last, old in self._holders.within(lo, hi):
            offset = self.offsets[old]
            writes.append(_meet(self._accesses.writing[old].moved(offset).within(first, last), claims))
            uses += [_meet(part.moved(offset).within(first, last), claims) for part in self._accesses.reading[old]]
        return writes, uses

    def _hold(self, value: Value, offset: int) -> None:
        self._holders.give(offset, offset + value.nbytes, value)
        self.offsets[value] = offset

    def give_back(self, values: Sequence[Value], now: int) -> None:
        """Frees the space of values that nothing needs after op `now`."""
        for value in values:
            if value.nbytes >= _SMALLEST_REUSED:
                self._free.give_back(self.offsets[value], self.offsets[value] + aligned(value.nbytes), now)

    def missing_order(self, data: Dag) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of tiles that no path of two data edges orders; a write is mostly ordered by those who read it."""
        readers, claimers = _unique_pairs(self._after_reads, data.size)
        parents, children = data.edges()
        ordered = Dag.from_edges(data.size, np.concatenate([parents, readers]), np.concatenate([children, claimers]))
        writers, overwriters = _unique_pairs(self._after_writes, data.size)
        writers_open = ~ordered.has_short_paths(writers, overwriters)
        readers_open = ~data.has_short_paths(readers, claimers)
        return (
            np.concatenate([writers[writers_open], readers[readers_open]]),
            np.concatenate([overwriters[writers_open], claimers[readers_open]]),
        )


def _unique_pairs(meetings: list[_Meeting], size: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [meeting.pairs() for meeting in meetings]
    keys = unique(np.concatenate([np.zeros(0, np.int64), *(before * size + after for before, after in pairs)]))
    return keys // max(size, 1), keys % max(size, 1)


def aligned(nbytes: int) -> int:
    """The next number of bytes at which a value may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
