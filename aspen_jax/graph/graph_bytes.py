"""The arrays of a TileGraph as bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.graph import graph_format
from aspen_jax.graph.layout import refuse

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

_NUM_ARRAYS = 14
_OF_TILES = ("tile_ops", "tile_boxes", "child_counts", "children", "costs")

# What a file keeps `input_names` and `result_names` in: UTF-8, each name ended by a zero byte.
_NAME_FIELDS = ("input_names", "result_names")


def encoded(graph: TileGraph, fields: Mapping[str, np.ndarray]) -> bytes:
    """The graph with these fields, without its constants."""
    for name in (*_NAME_FIELDS, graph_format.OUTPUTS):
        if name in graph.fields:
            raise InputError(f"a field of a graph is called {name!r}, which the format has a use for; rename it")
    names = "".join(name.replace("\0", " ") + "\0" for name in (*graph.kernels, *graph.op_names)).encode(errors="replace")
    counts = [len(graph.kernels), len(graph.operands), len(graph.results), len(graph.values), graph.num_ops, graph.num_tiles]
    if graph.further_outputs.size:
        fields = {**fields, graph_format.OUTPUTS: graph.further_outputs.reshape(-1)}
    box_widths = {2 * int(rank) for rank in graph.values[graph.ops[:, 1], 3]} - {0}
    return graph_format.encode(
        [
            (np.frombuffer(names, np.uint8), (0,)),
            (np.array([*counts, graph.workspace_bytes, graph.max_depth]), (0,)),
            (graph.values, (0, 4)),
            (graph.value_shapes, (0, 4)),
            (graph.operands, (0, 1)),
            (graph.results, (0, 1)),
            (graph.ops, (0, 5)),
            (graph.inputs, (0,)),
            (graph.params, (0,)),
            (graph.tile_ops, (1,)),
            (graph.tile_boxes, (0, *sorted(box_widths))),
            (graph.child_counts, (0, 1)),
            (graph.children, (1,)),
            (graph.costs, (0, 1)),
        ],
        fields,
    )


def with_names(graph: TileGraph) -> bytes:
    """The graph with its fields and the names of its inputs and results: what a file holds before the constants."""
    names = {
        field: np.frombuffer("".join(f"{name}\0" for name in names).encode(), np.uint8)
        for field, names in zip(_NAME_FIELDS, (graph.input_names, graph.result_names), strict=True)
        if names
    }
    return encoded(graph, {**graph.fields, **names})


def decoded(data: bytes) -> dict[str, Any]:
    """What the graph is made of; see `TileGraph.from_bytes`."""
    arrays, fields = graph_format.decode(data, _NUM_ARRAYS)
    names, counts, values, value_shapes, operands, results, ops, inputs, params, *tiles = arrays
    if counts.size != 8 or values.size % 4 or ops.size % 5:
        refuse("the counts, the table of values or that of ops hold part of a row")
    num_kernels, num_operands, num_results, num_values, num_ops, num_tiles, workspace_bytes, max_depth = counts.tolist()
    strings = graph_format.strings(names, "the graph")
    further = fields.pop(graph_format.OUTPUTS, np.zeros(0, np.int64))
    if further.size % 2:
        refuse("the table of further outputs holds part of a row")
    input_names, result_names = (
        _names(fields.pop(field, None), field, len(of)) for field, of in zip(_NAME_FIELDS, (operands, results), strict=True)
    )
    ops, values, further = ops.reshape(-1, 5), values.reshape(-1, 4), further.reshape(-1, 2)
    counted = (num_kernels, num_operands, num_results, num_values, num_ops, num_tiles)
    held = (len(strings[:num_kernels]), len(operands), len(results), len(values), len(ops), len(tiles[0]))
    if counted != held:
        refuse(
            "the graph's counts of kernels, operands, results, values, ops and tiles are "
            f"{', '.join(map(str, counted))} and its arrays hold {', '.join(map(str, held))}"
        )
    return {
        "kernels": tuple(strings[:num_kernels]),
        "op_names": tuple(strings[num_kernels:]),
        "values": values,
        "value_shapes": value_shapes,
        "operands": operands,
        "results": results,
        "ops": ops,
        "inputs": inputs,
        "params": params,
        **dict(zip(_OF_TILES, tiles, strict=True)),
        "workspace_bytes": workspace_bytes,
        "max_depth": max_depth,
        "fields": fields,
        "input_names": input_names,
        "result_names": result_names,
        "further_outputs": further,
    }


def _names(text: np.ndarray | None, field: str, most: int) -> tuple[str, ...]:
    if text is None:
        return ()
    names = graph_format.strings(text, f"the graph's {field}")
    if len(names) > most or len(set(names)) != len(names) or "" in names:
        refuse(f"the graph's {field} are {len(names)} for {most} values, or not all different, or one is empty")
    return tuple(names)
