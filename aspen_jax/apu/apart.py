"""A graph's values taken apart: none lies where another does, so that each byte is written once.

Several memories need that. A copy of a box may come late, and carries elements that nobody reads. Where the workspace is used
again, or an op works in place, it would write over newer values. The edges of a graph do not forbid that: they order only tiles.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from aspen_jax.apu.memory import aligned

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph


def apart(graph: TileGraph) -> TileGraph:
    """The same ops, tiles and edges, with memory of its own for each value that an op writes.

    A result is what the last op wrote in its buffer. What ops wrote there before moves into the workspace, so no op is in place.
    """
    num_operands = len(graph.operands)
    workspace = num_operands + len(graph.results)
    written = [(op, number) for op in range(graph.num_ops) for number in graph.outputs_of(op)]
    last_in = {int(graph.values[number, 0]): number for _, number in written}
    values = graph.values.copy()
    end = 0
    kept = {}
    for result, number in enumerate(graph.results.tolist()):
        kept[last_in[int(graph.values[number, 0])]] = kept[number] = num_operands + result
    for number in {number: None for _, number in written} | kept:
        if number in kept:
            values[number, :2] = kept[number], 0
            continue
        shape, dtype = graph.value(number)
        values[number, :2] = workspace, end
        end += aligned(math.prod(shape) * dtype.itemsize)
    return dataclasses.replace(graph, values=values, workspace_bytes=end)
