"""The Automated Parallelism Unit: Program -> TileGraph (ASPEN, section 3.1).

Each op's output is cut into tiles (`tiling`), a tile depends on those whose boxes it reads (`dependencies`), and values are placed
in memory with the edges that its reuse needs (`memory`).
"""

from __future__ import annotations

import numpy as np

from aspen_jax.apu.dependencies import data_edges, reads_of
from aspen_jax.apu.grid import Grid
from aspen_jax.apu.machine import Machine
from aspen_jax.apu.memory import place
from aspen_jax.apu.tiling import cut_points
from aspen_jax.dag import Dag
from aspen_jax.dtypes import DTYPE_NUMBERS
from aspen_jax.program import Program, Value
from aspen_jax.tilegraph import TileGraph

__all__ = ["Machine", "build"]


def build(program: Program, num_workers: int, machine: Machine | None = None, reuse: bool = True) -> TileGraph:
    """Tile a program.

    Args:
        program: each output is the whole of a value written by an op, and no value is output twice (`passes/outputs.py`).
        num_workers: the workers that the tiles should keep busy.
        machine: the cost model.
        reuse: whether values may lie where dead ones were.

    Raises:
        ValueError: an output is not of that kind.
    """
    machine = Machine() if machine is None else machine
    results = [operand.value for operand in program.outputs]
    written = {op.output for op in program.ops}
    if len(set(results)) < len(results) or not all(operand.is_whole and operand.value in written for operand in program.outputs):
        raise ValueError("each output of a program to tile must be a whole value of its own, written by an op; run passes.outputs")

    grids: dict[Value, Grid] = {}
    num_tiles = 0
    for op in program.ops:
        grids[op.output] = Grid.numbered(cut_points(op, num_workers, machine), num_tiles)
        num_tiles += len(grids[op.output].tiles)
    reads = [reads_of(op, grids[op.output].tiles, grids[op.output].boxes) for op in program.ops]
    data = Dag.from_edges(num_tiles, *data_edges([read for op_reads in reads for read in op_reads], grids))
    memory = place(program.ops, set(results), reads, grids, data, reuse)
    parents, children = data.edges()
    order = Dag.from_edges(num_tiles, np.concatenate([parents, memory.before]), np.concatenate([children, memory.after]))

    depths: dict[Value, int] = {}
    for op, op_reads in zip(program.ops, reads, strict=True):
        depths[op.output] = max((depths[read.value] + 1 for read in op_reads if read.value in depths and read.tiles.size), default=0)
    costs = [machine.nanoseconds(op.family.work(op, grids[op.output].boxes)) for op in program.ops]

    operands = [*program.inputs, *(value for value, _ in program.constants)]
    values = list(dict.fromkeys([*operands, *(op.output for op in program.ops)]))
    numbers = {value: number for number, value in enumerate(values)}
    buffers = {value: buffer for buffer, value in enumerate([*operands, *results])}
    workspace = len(buffers)
    kernels = tuple(dict.fromkeys(op.family.kernel for op in program.ops))
    params = [op.family.params(op) for op in program.ops]
    inputs: list[int] = []
    for op in program.ops:
        for operand in op.inputs:
            view = operand.view
            inputs += [numbers[operand.value], len(view.base), view.rank, *view.base, *view.starts]
            inputs += [entry for dim in view.dims for entry in dim]
    return TileGraph(
        kernels=kernels,
        op_names=tuple(op.name for op in program.ops),
        values=_table(
            [
                (buffers.get(value, workspace), memory.offsets.get(value, 0), DTYPE_NUMBERS[value.dtype], len(value.shape))
                for value in values
            ],
            4,
        ),
        value_shapes=_array([extent for value in values for extent in value.shape]),
        operands=_array([numbers[value] for value in operands]),
        results=_array([numbers[value] for value in results]),
        ops=_table(
            [
                (kernels.index(op.family.kernel), numbers[op.output], len(op.inputs), len(words), depths[op.output])
                for op, words in zip(program.ops, params, strict=True)
            ],
            5,
        ),
        inputs=_array(inputs),
        params=_array([word for words in params for word in words]),
        tile_ops=np.repeat(np.arange(len(program.ops)), [len(grids[op.output].tiles) for op in program.ops]),
        tile_boxes=_flat([grids[op.output].boxes.swapaxes(1, 2).reshape(-1) for op in program.ops]),
        child_counts=order.child_counts,
        children=order.children,
        costs=_flat(costs).astype(np.int64),
        workspace_bytes=memory.size,
        max_depth=max(depths.values(), default=0),
        constants=tuple(array for _, array in program.constants),
    )


def _array(items: list[int]) -> np.ndarray:
    return np.array(items, np.int64)


def _table(rows: list[tuple[int, ...]], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)


def _flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
