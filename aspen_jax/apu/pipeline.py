"""The steps of the APU, one after the other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from aspen_jax.apu.assemble import assemble
from aspen_jax.apu.dependencies import Read, Region, data_edges, reads_in, regions_of
from aspen_jax.apu.grid import Grid
from aspen_jax.apu.memory import place, result_chains
from aspen_jax.cost.machine import Machine
from aspen_jax.cost.tiling import cut_points
from aspen_jax.graph.dag import Dag
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Program, Value


@dataclasses.dataclass(frozen=True, eq=False)
class _Cut:
    """How an op is cut into tiles.

    Attributes:
        points: where, along each dimension of its output.
        boxes: what each tile writes.
        regions: what the tiles read of each input.
        costs: nanoseconds of each tile.
    """

    points: tuple[np.ndarray, ...]
    boxes: np.ndarray
    regions: list[Region]
    costs: np.ndarray

    @classmethod
    def of(cls, op: Op, num_workers: int, machine: Machine) -> _Cut:
        """The cut that the cost model thinks the fastest, or that was measured."""
        points = cut_points(op, num_workers, machine)
        boxes = Grid.numbered(points, 0).boxes
        return cls(points, boxes, regions_of(op, boxes), machine.of_boxes(op, boxes))


def build(program: Program, num_workers: int, machine: Machine | None = None, reuse: bool = True) -> TileGraph:
    """Tile a program.

    Args:
        program: each output is a value written by an op, reshaped at most, and no value is output twice (`passes/outputs.py`).
        num_workers: the workers that the tiles should keep busy.
        machine: the cost model.
        reuse: whether values may lie where dead ones were.

    Raises:
        ValueError: an output is not of that kind, or an op is in place that must not be (`passes/in_place.py`).
    """
    machine = Machine() if machine is None else machine
    results = [operand.value for operand in program.outputs]
    written = {value for op in program.ops for value in op.outputs}
    dense = all(operand.view.is_dense() and operand.value in written for operand in program.outputs)
    if not dense or len(set(results)) < len(results):
        raise ValueError("each output of a program must be a value of its own, written by an op; run passes.outputs first")

    # Layers repeat: what follows from an op's work alone is worked out once for ops that are alike.
    cuts: dict[Any, _Cut] = {}
    grids: dict[Value, Grid] = {}
    reads: list[list[Read]] = []
    costs: dict[Value, np.ndarray] = {}
    num_tiles = 0
    for op in program.ops:
        alike = op.likeness
        if alike not in cuts:
            cuts[alike] = _Cut.of(op, num_workers, machine)
        cut = cuts[alike]
        grid = Grid(cut.points, np.arange(num_tiles, num_tiles + len(cut.boxes)))
        grids.update((output, grid.of_output(op, output)) for output in op.outputs)
        reads.append(reads_in(op, grid.tiles, cut.regions))
        costs[op.output] = cut.costs
        num_tiles += len(cut.boxes)
    data = Dag.from_edges(num_tiles, *data_edges([read for op_reads in reads for read in op_reads], grids))
    chains = result_chains(program)
    outside = {value for chain in chains.values() for value in chain}
    memory = place(program.ops, outside, reads, grids, data, reuse, machine.edges_of_reuse)
    parents, children = data.edges()
    order = Dag.from_edges(num_tiles, np.concatenate([parents, memory.before]), np.concatenate([children, memory.after]))

    depths: dict[Value, int] = {}
    for op, op_reads in zip(program.ops, reads, strict=True):
        above = [depths[read.value] for read in op_reads if read.value in depths and read.tiles.size]
        depths.update(dict.fromkeys(op.outputs, max(above, default=-1) + 1))
    return assemble(program, grids, costs, depths, chains, memory, order)
