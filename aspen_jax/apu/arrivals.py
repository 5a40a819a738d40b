"""Which tiles wait for which pieces of an operand, and which tiles write which part of a result: regions, asked once more."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from aspen_jax.apu.verify import reads_of_graph, tile_grid
from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Value


class Written(NamedTuple):
    """How tiles write a result.

    Attributes:
        tiles: int64 [n], those after which a part of it is final.
        boxes: int64 [n, rank, 2], that part, in the result's coordinates; or None where the tiles write the result in another
            shape, so that it is final as a whole.
    """

    tiles: np.ndarray
    boxes: np.ndarray | None


def waiting_tiles(graph: TileGraph, pieces: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Which tiles wait for each piece.

    Args:
        graph: the graph.
        pieces: for some operands, by number, boxes [n, rank, 2] that hold each element once. Pieces are numbered in this order.

    Returns:
        How many tiles wait for each piece, int64 [pieces]; and the tiles of the first piece, then of the second, int64.

    Raises:
        InputError: there is no such operand, or its boxes do not hold each element once.
    """
    program, _, reads = reads_of_graph(graph)
    given = [*program.inputs, *(value for value, _ in program.constants)]
    holders = {value: operand for value, (_, operand, _) in zip(given, graph.given_values(), strict=True)}
    reads_of = {operand: [] for operand in pieces}
    for read in itertools.chain(*reads):
        if (operand := holders.get(read.value)) in reads_of:
            reads_of[operand].append(read)
    found: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    first = 0
    for operand, boxes in pieces.items():
        shape, dtype = graph.value(graph.operands[operand])
        try:
            grid = tile_grid(f"operand {operand}", Value(shape, dtype), np.arange(first, first + len(boxes)), boxes)
        except GraphFormatError:
            raise InputError(
                f"the {len(boxes)} pieces of operand {operand} are no grid that holds each element of shape {list(shape)} once; "
                "pass boxes that do"
            ) from None
        for read in reads_of[operand]:
            if read.value.shape == shape:
                row, cell = grid.touched(read.boxes)
                found.append((grid.tiles[cell], read.tiles[row]))
            else:  # a part of the operand, or in another shape: the tile waits for all of it
                found.append((np.repeat(np.arange(first, first + len(boxes)), len(read.tiles)), np.tile(read.tiles, len(boxes))))
        first += len(boxes)
    of_pieces, tiles = (np.concatenate(parts) for parts in zip(*found, strict=True))
    pairs = np.unique(of_pieces * max(graph.num_tiles, 1) + tiles)
    of_pieces, tiles = np.divmod(pairs, max(graph.num_tiles, 1))
    return np.bincount(of_pieces, minlength=first).astype(np.int64), tiles


def written_results(graph: TileGraph) -> list[Written]:
    """How tiles write each result. Where several ops write it in place, the last one makes it final."""
    buffers = graph.values[:, 0]
    results = []
    for result in graph.results.tolist():
        writers = [op for op in range(graph.num_ops) if (buffers[graph.outputs_of(op)] == buffers[result]).any()]
        shape = graph.value(result)[0]
        tiles, boxes = graph.tiles_of(writers[-1])
        written = graph.value(graph.ops[writers[-1], 1])[0]
        results.append(Written(tiles, _in_shape(boxes, written, shape)))
    return results


def _in_shape(boxes: np.ndarray, written: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray | None:
    """The same elements in another shape, where it differs in dimensions of extent 1 alone."""
    there = [d for d, extent in enumerate(written) if extent != 1]
    here = [d for d, extent in enumerate(shape) if extent != 1]
    if [written[d] for d in there] != [shape[d] for d in here]:
        return None
    result = np.tile(np.array([0, 1], np.int64), (len(boxes), len(shape), 1))
    result[:, here] = boxes[:, there]
    return result
