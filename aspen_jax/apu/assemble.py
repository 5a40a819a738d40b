"""Writes down what the APU has found as the arrays of a TileGraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aspen_jax.apu.grid import Grid
from aspen_jax.apu.memory import Memory
from aspen_jax.apu.packing import pack
from aspen_jax.graph.dag import Dag
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.dtypes import DTYPE_NUMBERS
from aspen_jax.ir.program import Program, Value


def assemble(
    program: Program,
    grids: Mapping[Value, Grid],
    costs: Mapping[Value, np.ndarray],
    depths: Mapping[Value, int],
    chains: Mapping[Value, Sequence[Value]],
    memory: Memory,
    order: Dag,
) -> TileGraph:
    """The graph of a program.

    Args:
        program: its ops, in order; their tiles are numbered in the same order.
        grids: the tiles of each op's output.
        costs: nanoseconds of each tile, by the op's output.
        depths: the longest path in ops, by the op's output.
        chains: for each output what lies in its buffer one after the other (`memory.result_chains`).
        memory: where the others lie.
        order: all edges between tiles.
    """
    packed = pack(program.constants)
    operands = [*program.inputs, *(value for value, _ in packed.operands)]
    # A result of another shape than the value written is a second value in the same buffer.
    results = [item.value if item.is_whole else Value(item.shape, item.dtype) for item in program.outputs]
    values = list(dict.fromkeys([*operands, *packed.places, *(value for op in program.ops for value in op.outputs), *results]))
    numbers = {value: number for number, value in enumerate(values)}
    buffers = {value: buffer for buffer, value in enumerate([*operands, *results])}
    workspace = len(buffers)
    for operand, result in zip(program.outputs, results, strict=True):
        chain = chains[operand.value]
        buffers[result] = buffers.get(chain[0], buffers[result])
        buffers.update((value, buffers[result]) for value in chain)
    buffers.update((value, len(program.inputs) + operand) for value, (operand, _) in packed.places.items())
    offsets = {**memory.offsets, **{value: offset for value, (_, offset) in packed.places.items()}}
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
                (buffers.get(value, workspace), offsets.get(value, 0), DTYPE_NUMBERS[value.dtype], len(value.shape))
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
        costs=_flat([costs[op.output] for op in program.ops]).astype(np.int64),
        workspace_bytes=memory.size,
        max_depth=max(depths.values(), default=0),
        constants=tuple(array for _, array in packed.operands),
        further_outputs=_table(
            [(number, numbers[value]) for number, op in enumerate(program.ops) for value in op.further],
            2,
        ),
    )


def _array(items: list[int]) -> np.ndarray:
    return np.array(items, np.int64)


def _table(rows: list[tuple[int, ...]], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)


def _flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
