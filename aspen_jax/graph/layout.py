"""Whether the arrays of a TileGraph fit together, so that reading them can never fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from aspen_jax.errors import GraphFormatError
from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.ir.view import MAX_RANK, View, ViewDim

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

LARGEST_BYTES = 1 << 48
"""No value, offset or workspace has more."""


def refuse(message: str) -> NoReturn:
    """Raise GraphFormatError, with what to do about it."""
    raise GraphFormatError(f"{message}; save the graph again, or trace the function again")


def check_layout(graph: TileGraph) -> None:
    """Check that the arrays have the lengths that they imply and that every id is in range.

    Raises:
        GraphFormatError: they do not.
    """
    num_values, num_buffers = len(graph.values), len(graph.operands) + len(graph.results) + 1
    buffer, offset, dtype, rank = graph.values.T
    _check_range("the buffer of value", buffer, num_buffers)
    _check_range("the offset of value", offset, LARGEST_BYTES)
    _check_range("the dtype of value", dtype, len(DTYPES))
    _check_range("the rank of value", rank, MAX_RANK + 1)
    _check_length("shapes of values", graph.value_shapes, int(rank.sum()))
    _check_range("extent", graph.value_shapes, LARGEST_BYTES)
    _check_range("operand", graph.operands, num_values)
    _check_range("result", graph.results, num_values)

    kernel, output, num_inputs, num_params, depth = graph.ops.T
    if len(graph.op_names) != graph.num_ops:
        refuse(f"{len(graph.op_names)} names for {graph.num_ops} ops")
    _check_range("the workspace size", np.array([graph.workspace_bytes]), LARGEST_BYTES)
    _check_range("the largest depth", np.array([graph.max_depth]), 1 << 31)
    _check_range("the kernel of op", kernel, len(graph.kernels))
    _check_range("the output of op", output, num_values)
    _check_range("the number of inputs of op", num_inputs, len(graph.inputs) + 1)
    _check_range("the number of parameters of op", num_params, len(graph.params) + 1)
    _check_range("the depth of op", depth, graph.max_depth + 1)
    _check_length("parameter words", graph.params, int(num_params.sum()))
    words, position = graph.inputs.tolist(), 0
    for _ in range(int(num_inputs.sum())):
        value, _, position = read_input(words, position)
        if not 0 <= value < num_values:
            refuse(f"an op reads value {value} of {num_values}")
    _check_length("words of op inputs", graph.inputs, position)

    _check_range("the op of further output", graph.further_outputs[:, 0], graph.num_ops)
    _check_range("the value of further output", graph.further_outputs[:, 1], num_values)
    if (np.diff(graph.further_outputs[:, 0]) < 0).any():
        refuse("the further outputs are not in the order of their ops")

    _check_range("the op of tile", graph.tile_ops, graph.num_ops)
    _check_length("box bounds", graph.tile_boxes, int(2 * rank[output[graph.tile_ops]].sum()))
    _check_length("counts of children", graph.child_counts, graph.num_tiles)
    _check_range("the number of children of tile", graph.child_counts, graph.num_edges + 1)
    _check_length("children", graph.children, int(graph.child_counts.sum()))
    _check_range("child", graph.children, graph.num_tiles)
    _check_length("costs", graph.costs, graph.num_tiles)
    _check_range("the cost of tile", graph.costs, 1 << 63)


def _check_range(what: str, array: np.ndarray, limit: int) -> None:
    wrong = np.flatnonzero((array < 0) | (array >= limit))
    if wrong.size:
        refuse(f"{what} {wrong[0]} is {array[wrong[0]]}, outside [0, {limit})")


def _check_length(what: str, array: np.ndarray, length: int) -> None:
    if len(array) != length:
        refuse(f"the graph holds {len(array)} {what} where {length} are needed")


def read_input(words: list[int], position: int) -> tuple[int, View, int]:
    """An op input from `TileGraph.inputs`: value, view and where the next one begins.

    Raises:
        GraphFormatError: the words end early.
    """
    value, base_rank, rank = words[position : position + 3] if position + 3 <= len(words) else (0, -1, -1)
    end = position + 3 + 2 * base_rank + 3 * rank
    if base_rank < 0 or rank < 0 or end > len(words):
        refuse("the op inputs of the graph end in the middle of a view")
    base, starts = words[position + 3 : position + 3 + base_rank], words[position + 3 + base_rank : end - 3 * rank]
    dims = words[end - 3 * rank : end]
    return value, View(tuple(base), tuple(starts), tuple(ViewDim(*dims[d : d + 3]) for d in range(0, 3 * rank, 3))), end
