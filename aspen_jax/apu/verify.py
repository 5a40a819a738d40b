"""Everything that makes a TileGraph a right one, checked on its arrays alone.

`check_layout` of graph/layout.py makes sure that the arrays fit together; `verify` then checks what they say. Required edges come
from the op families' regions, as in the APU, but the tiles are taken as they are: any set of boxes may cover an output as long as
each element is written once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.apu.dependencies import Read, data_edges, reads_of
from aspen_jax.apu.grid import Grid, boxes_of
from aspen_jax.apu.memory import ALIGNMENT
from aspen_jax.apu.verify_reuse import check_reuse
from aspen_jax.graph.layout import LARGEST_BYTES, check_layout, refuse
from aspen_jax.ir.program import Op, Program, Value
from aspen_jax.ir.view import MAX_RANK, View

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

# Boxes are checked and looked up on the grid of all their planes, which for a grid of tiles has one cell a tile.
_MOST_CELLS_PER_TILE = 64


def verify(graph: TileGraph) -> None:
    """Check a graph completely.

    Raises:
        GraphFormatError: something is wrong; the message says what and where.
    """
    check_layout(graph)
    _check_values(graph)
    program = graph.program()
    _check_ops(graph, program)
    if not graph.dag.is_acyclic():
        on_cycle = np.setdiff1d(np.arange(graph.num_tiles), np.concatenate([np.zeros(0, np.int64), *graph.dag.levels]))
        refuse(f"tile {on_cycle[0]} waits for itself: the graph has a cycle")
    tiles = [graph.tiles_of(number) for number in range(graph.num_ops)]
    reads = [_reads(number, op, *tiles[number]) for number, op in enumerate(program.ops)]
    parents, children = _data_edges(program, tiles, reads)
    missing = np.flatnonzero(~graph.dag.has_edges(parents, children))
    if missing.size:
        refuse(f"tile {children[missing[0]]} reads what tile {parents[missing[0]]} writes and does not wait for it")
    check_reuse(graph, program, tiles, reads)
    # What its kernels take of dtypes, shapes and parameter words the engine alone knows, and how much memory a run may take.
    _ = graph.plan


def reads_of_graph(graph: TileGraph) -> tuple[Program, list[tuple[np.ndarray, np.ndarray]], list[list[Read]]]:
    """The program of a graph; of each op its tiles and their boxes; and what they read, an entry an input.

    Raises:
        GraphFormatError: what an op reads cannot be told.
    """
    program = graph.program()
    tiles = [graph.tiles_of(number) for number in range(graph.num_ops)]
    return program, tiles, [_reads(number, op, *tiles[number]) for number, op in enumerate(program.ops)]


def carries_data(graph: TileGraph) -> np.ndarray:
    """Whether the child of each edge reads what its parent writes, bool [E], in the order of `TileGraph.children`."""
    program, tiles, reads = reads_of_graph(graph)
    parents, children = _data_edges(program, tiles, reads)
    before, after = graph.dag.edges()
    return np.isin(before * graph.num_tiles + after, parents * graph.num_tiles + children)


def _data_edges(
    program: Program, tiles: list[tuple[np.ndarray, np.ndarray]], reads: list[list[Read]]
) -> tuple[np.ndarray, np.ndarray]:
    grids: dict[Value, Grid] = {}
    for number, op in enumerate(program.ops):
        where, (own, boxes) = f"op {number} ({op.name})", tiles[number]
        for output in op.outputs:
            unit = op.unit_of(output)
            if unit is None and len(own) != 1:
                refuse(f"{len(own)} tiles of {where} write an output of shape {list(output.shape)}, which one must write whole")
            cut = np.flatnonzero((boxes % np.array(unit, np.int64)[:, None]).any(axis=(1, 2))) if unit else np.zeros(0, int)
            if cut.size:
                refuse(f"tile {own[cut[0]]} of {where} writes a part of an element of shape {list(output.shape)}")
            grids[output] = tile_grid(where, output, own, boxes_of(op, output, boxes))
    return data_edges([read for op_reads in reads for read in op_reads], grids)


def _check_values(graph: TileGraph) -> None:
    outside = [*graph.operands.tolist(), *graph.results.tolist()]
    written = {*graph.results.tolist(), *graph.ops[:, 1].tolist(), *graph.further_outputs[:, 1].tolist()}
    for number, (buffer, offset, _, _) in enumerate(graph.values.tolist()):
        shape, dtype = graph.value(number)
        size = math.prod(shape) * dtype.itemsize
        if size > LARGEST_BYTES:
            refuse(f"value {number} of shape {list(shape)} has {size} bytes")
        if buffer < len(outside):
            shape_there, dtype_there = graph.value(outside[buffer])
            size_there = math.prod(shape_there) * dtype_there.itemsize
            if outside[buffer] == number:
                fits = offset == 0
            elif buffer < len(graph.operands) and number not in written:
                fits = dtype == dtype_there and offset % ALIGNMENT == 0 and offset + size <= size_there
            else:
                fits = dtype == dtype_there and offset == 0 and size == size_there
            if not fits:
                refuse(f"value {number} lies at byte {offset} of buffer {buffer}, which is that of value {outside[buffer]}")
        elif offset % ALIGNMENT or offset + size > graph.workspace_bytes:
            refuse(f"value {number} lies at byte {offset} of a workspace of {graph.workspace_bytes} and has {size} bytes")
    shared = set()
    for buffer, number in enumerate(outside):
        place = int(graph.values[number, 0])
        if place == buffer:
            continue
        if not place < len(graph.operands) <= buffer or number == outside[place] or place in shared:
            refuse(f"value {number} is that of buffer {buffer} and lies in buffer {place}")
        shared.add(place)


def _check_ops(graph: TileGraph, program: Program) -> None:
    """Each value is written by at most one op and before it is read; views, shapes and dtypes fit; results have writers."""
    given = {*program.inputs, *(value for value, _ in program.constants)}
    written: set[Value] = set()
    for op in program.ops:
        if not (given | written).isdisjoint(op.outputs):
            refuse(f"op {op.name} writes a value that is an operand or that another op writes")
        written.update(op.outputs)
    writers: dict[int, list[Op]] = {int(graph.values[number, 0]): [] for number in graph.results}
    of_ops = [(op, number) for op, number in zip(program.ops, graph.ops[:, 1].tolist(), strict=True)]
    of_ops += [(program.ops[op], number) for op, number in graph.further_outputs.tolist()]
    for op, number in of_ops:
        buffer = int(graph.values[number, 0])
        if buffer in writers:
            writers[buffer].append(op)
        elif buffer < len(graph.operands):
            refuse(f"op {op.name} writes in operand {buffer}, where no result lies")
    for number in graph.results:
        found = writers[int(graph.values[number, 0])]
        if not found or not all(op.in_place for op in found[1:]):
            refuse(
                f"the buffer of result value {number} is written by {len(found)} ops, none of which rewrites the other's value"
            )
    for number, op in enumerate(program.ops):
        where = f"op {number} ({op.name})"
        for index, operand in enumerate(op.inputs):
            if operand.value not in written and operand.value not in given:
                refuse(f"input {index} of {where} is written by no op")
            _check_view(f"input {index} of {where}", operand.view, operand.value.size)
        try:
            op.family.check(op)
        except (ValueError, IndexError, TypeError, ArithmeticError) as error:
            refuse(f"{where} does not fit its inputs: {error}")


def _check_view(where: str, view: View, size: int) -> None:
    sources = [dim.source for dim in view.dims if dim.source != -1]
    if len(view.starts) != len(view.base) or min(view.base, default=1) < 0 or math.prod(view.base) != size:
        refuse(f"{where} reshapes a value of {size} elements to {list(view.base)}")
    if view.rank > MAX_RANK or len(set(sources)) < len(sources) or not all(0 <= source < len(view.base) for source in sources):
        refuse(f"{where} has a view whose dimensions walk {sources} of {len(view.base)}")
    if any(extent < 0 or (source == -1 and step) for source, step, extent in view.dims):
        refuse(f"{where} has a view with a negative extent or a broadcast that steps")
    if 0 in view.shape:
        return
    reach = {dim.source: dim.step * (dim.extent - 1) for dim in view.dims if dim.source != -1}
    for axis, (start, extent) in enumerate(zip(view.starts, view.base, strict=True)):
        if not (0 <= start < extent and 0 <= start + reach.get(axis, 0) < extent):
            refuse(f"{where} has a view that leaves its value: from {start} to {start + reach.get(axis, 0)} of {extent}")


def tile_grid(where: str, value: Value, tiles: np.ndarray, boxes: np.ndarray) -> Grid:
    """The tile of each cell, once it is known that the boxes cover the value exactly once.

    Raises:
        GraphFormatError: they do not; `where` says which they are.
    """
    shape = np.array(value.shape, np.int64)
    wrong = np.flatnonzero(((boxes[:, :, 0] < 0) | (boxes[:, :, 0] >= boxes[:, :, 1]) | (boxes[:, :, 1] > shape)).any(axis=1))
    if wrong.size:
        refuse(f"tile {tiles[wrong[0]]} of {where} has the box {boxes[wrong[0]].tolist()} in shape {list(value.shape)}")
    cuts = tuple(np.unique(np.append(boxes[:, d], (0, extent))) for d, extent in enumerate(value.shape))
    num_cells = math.prod(len(cut) - 1 for cut in cuts)
    if num_cells > _MOST_CELLS_PER_TILE * (len(tiles) + 1):
        refuse(f"the {len(tiles)} tiles of {where} are too irregular or do not cover it")
    grid = Grid(cuts, np.full(num_cells, -1))
    row, cell = grid.touched(boxes)
    written = np.bincount(cell, minlength=num_cells)
    if (written != 1).any():
        cell = int(np.flatnonzero(written != 1)[0])
        refuse(f"the tiles of {where} write the elements at {grid.boxes[cell].tolist()} {written[cell]} times")
    grid.tiles[cell] = tiles[row]
    return grid


def _reads(number: int, op: Op, tiles: np.ndarray, boxes: np.ndarray) -> list[Read]:
    try:
        with np.errstate(all="raise"):
            reads = reads_of(op, tiles, boxes)
        for read in reads:
            if (read.boxes < 0).any() or (read.boxes[:, :, 1] > np.array(read.value.shape, np.int64)).any():
                raise ValueError("a region leaves the value that it reads")
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        refuse(f"what op {number} ({op.name}) reads cannot be told: {error}")
    return reads
