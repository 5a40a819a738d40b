"""Horizontal fusion: ops of one kernel that do not wait for each other are one launch, with a row of thread blocks for each.

A launch costs a graph about 1 us on an H200. Updates of two caches, or products of the same rows with weights that are arguments,
take less than that each.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from aspen_jax import _engine
from aspen_jax.graph.dag import Dag
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import kernel_of
from aspen_jax.targets.cuda.code.source import translation_unit
from aspen_jax.targets.cuda.library.library import by_library
from aspen_jax.targets.cuda.products.streams import PLACES, is_streamed

# As kMostOps in cuda/kernels/kernel_shape.h: of more ops a launch less is a small share.
_MOST_OPS = 8
# A kernel's arguments have at most 4 KiB before CUDA 12.1. The boxes' address is the last of them.
_ARGUMENT_BYTES = (4 << 10) - 8
_NUM_TENSORS, _TENSOR_BYTES = 2, 128


def launched_with(ops: Sequence[Op], graph: TileGraph) -> list[int]:
    """The first op of the launch that each op of a graph belongs to; an op that is alone has its own number.

    They have the same code, equally many tiles, and together no more thread blocks than fill a GPU. None waits for another: all
    have the same level, the longest path to an op by all edges of the graph. So launches wait for each other in one direction.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    result = list(range(len(ops)))
    levels = _levels(graph)
    if levels is None:
        return result
    tiles = np.bincount(graph.tile_ops, minlength=len(ops)).tolist()
    alike = collections.defaultdict(list)
    for number in np.unique(graph.tile_ops).tolist():
        alike[levels[number], tiles[number]].append(number)
    for (_, num_tiles), numbers in alike.items():
        for same in _by_code(ops, numbers) if len(numbers) > 1 else ():
            op = ops[same[0]]
            places = num_tiles * op.slices * (PLACES if is_streamed(op) else 1)
            most = min(_MOST_OPS, _engine.CUDA_FEWEST_TILES // places, _ARGUMENT_BYTES // _bytes_of(op))
            for place, number in enumerate(same):
                result[number] = same[place - place % max(1, most)]
    return result


def _by_code(ops: Sequence[Op], numbers: Sequence[int]) -> list[list[int]]:
    """Numbers of ops by their code, without those that a library computes."""
    of_code: dict[str, list[int]] = collections.defaultdict(list)
    for number in numbers:
        if by_library(ops[number]) is None:
            of_code[translation_unit([ops[number]], "")].append(number)
    return list(of_code.values())


def _levels(graph: TileGraph) -> list[int] | None:
    """The longest path to each op, in ops; None where ops wait for each other, or for themselves."""
    parents, children = graph.dag.edges()
    ops = Dag.from_edges(graph.num_ops, graph.tile_ops[parents], graph.tile_ops[children])
    if not ops.is_acyclic():
        return None
    levels = np.empty(graph.num_ops, np.int64)
    for level, numbers in enumerate(ops.levels):
        levels[numbers] = level
    return levels.tolist()


def _bytes_of(op: Op) -> int:
    """Bytes of an op's addresses and maps."""
    addresses = 8 * (max(1, len(op.inputs)) + len(op.outputs))
    maps = _NUM_TENSORS * _TENSOR_BYTES if kernel_of(op).maps else 0
    return maps - addresses // -_TENSOR_BYTES * _TENSOR_BYTES if maps else addresses
