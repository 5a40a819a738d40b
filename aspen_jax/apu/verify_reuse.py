"""Whether values that share bytes are safe from each other in every order of execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from aspen_jax.apu.dependencies import Read
from aspen_jax.apu.grid import boxes_of
from aspen_jax.apu.memory import Holders, Touches, overlapping, rewritten, touches
from aspen_jax.errors import GraphFormatError
from aspen_jax.graph.dag import Dag, unique
from aspen_jax.ir.program import Program, Value

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph


class _Tenant(NamedTuple):
    """A value in memory that others may share, and who touches it.

    Attributes:
        value, offset: the value, and where it begins.
        tiles: int array [n], the tiles that touch it: first all that write it, then all that read it.
        boxes: int array [n, rank, 2], what each of them touches.
        num_writes: how many of them write; none do where the caller has.
        rewrites: the value at the same place that the writing op is in place of, or None.
    """

    value: Value
    offset: int
    tiles: np.ndarray
    boxes: np.ndarray
    num_writes: int
    rewrites: Value | None

    @property
    def end(self) -> int:
        return self.offset + self.value.nbytes

    def touches(self) -> Touches:
        """The bytes of each entry; `tiles` of the result are entries."""
        return touches(self.value, np.arange(len(self.tiles)), self.boxes).moved(self.offset)

    def touches_to_await(self, other: _Tenant) -> Touches:
        """The bytes of each entry that must come before `other` is written there.

        A tile of an op in place has itself read what it writes, and the data's edges order it after those that wrote that.
        """
        touched = self.touches()
        if other.rewrites is not self.value:
            return touched
        kept = ~np.isin(self.tiles, other.tiles[: other.num_writes])
        kept[: self.num_writes] = False
        return Touches(*(array[kept] for array in touched))

    def writes(self) -> Touches:
        """The entries that write."""
        return Touches(*(array[: self.num_writes] for array in self.touches()))

    def runs(self, entry: int) -> Touches:
        """The exact bytes of an entry: a range for each run of adjacent elements."""
        box, shape = self.boxes[entry], self.value.shape
        inner = len(shape)
        length = 1
        while inner and (inner == len(shape) or length == np.prod(shape[inner:])):
            inner -= 1
            length *= int(box[inner, 1] - box[inner, 0])
        starts = np.zeros(1, np.int64)
        for d, extent in enumerate(shape):
            index = np.arange(*box[d]) if d < inner else box[d, :1]
            starts = (starts[:, None] * extent + index).reshape(-1)
        size = self.value.dtype.itemsize
        return Touches(np.zeros(len(starts), np.int64), self.offset + starts * size, self.offset + (starts + length) * size)


def check_reuse(
    graph: TileGraph, program: Program, tiles: Sequence[tuple[np.ndarray, np.ndarray]], reads: Sequence[Sequence[Read]]
) -> None:
    """Check that of any two values that share bytes, one is done with before the other is written.

    An operand and the result that lies in it count as one memory, as a call may make them.

    Args:
        graph: its indices, boxes and data dependencies are known to be right.
        program: the graph's ops.
        tiles: for each op, its tiles and their boxes.
        reads: for each op, what its tiles read.

    Raises:
        GraphFormatError: two values are not safe from each other, or a result is not what its buffer holds in the end.
    """
    for buffer, tenants in _tenants(graph, program, tiles, reads).items():
        if buffer == len(graph.operands) + len(graph.results):
            _check_workspace(_by_level(tenants, graph.dag), graph.dag)
        else:
            _check_result(tenants, graph.dag, buffer)


def _check_workspace(tenants: Sequence[_Tenant], dag: Dag) -> None:
    # Where every byte passes from one value to the next in an order that the edges keep, no two values meet. That is all the APU
    # makes, and quickly checked; only if it does not hold each pair of values must be looked at.
    if _passed_on_in_order(tenants, dag):
        return
    numbers = np.arange(len(tenants))
    space = Touches(numbers, np.array([tenant.offset for tenant in tenants]), np.array([tenant.end for tenant in tenants]))
    for a, b in zip(*overlapping(space, space), strict=True):
        if a < b and not _done_before(tenants[a], tenants[b], dag) and not _done_before(tenants[b], tenants[a], dag):
            _refuse(tenants[a], tenants[b], "the workspace")


def _check_result(tenants: Sequence[_Tenant], dag: Dag, buffer: int) -> None:
    # What the last op writes is the result.
    if _passed_on_in_order(tenants, dag):
        return
    for b, second in enumerate(tenants):
        for first in tenants[:b]:
            if not _done_before(first, second, dag):
                _refuse(first, second, f"buffer {buffer}")


def _refuse(first: _Tenant, second: _Tenant, where: str) -> NoReturn:
    raise GraphFormatError(
        f"values of shapes {list(first.value.shape)} and {list(second.value.shape)} share bytes {second.offset} to "
        f"{min(first.end, second.end)} of {where} and no edges keep their tiles apart; build the graph again"
    )


def _tenants(
    graph: TileGraph, program: Program, tiles: Sequence[tuple[np.ndarray, np.ndarray]], reads: Sequence[Sequence[Read]]
) -> dict[int, list[_Tenant]]:
    """The values of each memory that ops write, those of the caller's first, then in the order of the ops."""
    readers: dict[Value, list[Read]] = {}
    for read in (read for op_reads in reads for read in op_reads):
        readers.setdefault(read.value, []).append(read)

    def tenant(value: Value, offset: int, tiles: np.ndarray, boxes: np.ndarray, rewrites: Value | None = None) -> _Tenant:
        parts = [(tiles, boxes), *((read.tiles, read.boxes) for read in readers.get(value, ()))]
        joined = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return _Tenant(value, offset, *joined, num_writes=len(tiles), rewrites=rewrites)

    further: list[list[int]] = [[] for _ in program.ops]
    for op, value in graph.further_outputs.tolist():
        further[op].append(value)
    places = [
        graph.values[[first, *others], :2].tolist() for first, others in zip(graph.ops[:, 1].tolist(), further, strict=True)
    ]
    tenants: dict[int, list[_Tenant]] = {buffer: [] for outputs in places for buffer, _ in outputs}
    given = [*program.inputs, *(value for value, _ in program.constants)]
    for value, (_, buffer, offset) in zip(given, graph.given_values(), strict=True):
        if buffer in tenants and value.nbytes:
            none = np.zeros(0, np.int64), np.zeros((0, len(value.shape), 2), np.int64)
            tenants[buffer].append(tenant(value, offset, *none))
    for number, (op, outputs) in enumerate(zip(program.ops, places, strict=True)):
        for value, (buffer, offset) in zip(op.outputs, outputs, strict=True):
            if value.nbytes:
                own, boxes = tiles[number]
                rewrites = rewritten(op) if op.in_place and value is op.output else None
                tenants[buffer].append(tenant(value, offset, own, boxes_of(op, value, boxes), rewrites))
    return tenants


def _by_level(tenants: Sequence[_Tenant], dag: Dag) -> list[_Tenant]:
    """Tenants by the level of their first tile, which is the order of time where there is one."""
    level = np.zeros(dag.size, np.int64)
    for number, nodes in enumerate(dag.levels):
        level[nodes] = number
    return sorted(tenants, key=lambda tenant: int(level[tenant.tiles[: tenant.num_writes]].min()))


def _passed_on_in_order(tenants: Sequence[_Tenant], dag: Dag) -> bool:
    by_value = {tenant.value: tenant for tenant in tenants}
    holders = Holders()
    before: list[np.ndarray] = [np.zeros(0, np.int64)]
    after: list[np.ndarray] = [np.zeros(0, np.int64)]
    for tenant in tenants:
        for lo, hi, value in holders.within(tenant.offset, tenant.end):
            holder = by_value[value]
            early, late = overlapping(holder.touches_to_await(tenant).within(lo, hi), tenant.writes())
            before.append(holder.tiles[early])
            after.append(tenant.tiles[late])
        holders.give(tenant.offset, tenant.end, tenant.value)
    keys = unique(np.concatenate(before) * dag.size + np.concatenate(after))
    return bool(dag.has_paths(keys // max(dag.size, 1), keys % max(dag.size, 1)).all())


def _done_before(first: _Tenant, second: _Tenant, dag: Dag) -> bool:
    """Whether each tile that touches bytes of `first` comes before those that write the same bytes for `second`."""
    early, late = overlapping(first.touches_to_await(second), second.writes())
    apart = np.flatnonzero(~dag.has_paths(first.tiles[early], second.tiles[late]))
    return not any(overlapping(first.runs(early[k]), second.runs(late[k]))[0].size for k in apart)
