"""What to call the tiles of a graph in a trace, and what to say of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.report.timeline import Gap, Idle

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

LONGEST_NAME = 160


def bounded(name: str, longest: int = LONGEST_NAME) -> str:
    """A name from a user's program as text of printable characters and at most `longest` of them.

    Such a name may be of any length and hold any code point, also halves of surrogate pairs, which no UTF-8 text may hold.
    """
    if len(name) > longest:
        half = (longest - 3) // 2
        name = f"{name[:half]}...{name[-half:]}"
    return name if name.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


class Labels:
    """Names and facts of a graph's tiles.

    Attributes:
        ops: the name of each op: as in the graph, or that of its kernel where the graph gives none.
        boxes: of each tile the part of its op's output, as in "0:8, 16:32".
        bytes: float64 [T], bytes that each tile reads and writes; None if this package does not know the graph's kernels.
        costs: int64 [T], estimated nanoseconds.
    """

    def __init__(self, graph: TileGraph, costs: np.ndarray | None = None):
        """Look at each tile once.

        Args:
            graph: whose tiles.
            costs: estimated nanoseconds of each tile; the graph's if None.

        Raises:
            InputError: the costs are not as many as the tiles.
        """
        self.costs = graph.costs if costs is None else np.asarray(costs)
        if self.costs.shape != (graph.num_tiles,):
            raise InputError(f"the costs are of shape {list(self.costs.shape)}; pass one for each of {graph.num_tiles} tiles")
        self._tile_ops = graph.tile_ops
        self.ops = [bounded(name or graph.kernels[op[0]]) for name, op in zip(graph.op_names, graph.ops, strict=True)]
        self.boxes = [""] * graph.num_tiles
        for op in range(graph.num_ops):
            for tile, box in zip(*(array.tolist() for array in graph.tiles_of(op)), strict=True):
                self.boxes[tile] = ", ".join(f"{lo}:{hi}" for lo, hi in box)
        self.bytes = _bytes(graph)

    def op_number(self, tile: int) -> int:
        """The number of a tile's op."""
        return int(self._tile_ops[tile])

    def op(self, tile: int) -> str:
        """The name of a tile's op."""
        return self.ops[self._tile_ops[tile]]

    def tile(self, tile: int) -> str:
        """Op and number of a tile."""
        return f"{self.op(tile)} tile {tile}"

    def gap(self, gap: Gap) -> str:
        """What happened in a gap."""
        return gap.why.value if gap.why is Idle.DONE else f"{gap.why.value} {self.tile(gap.tile)}"

    def facts(self, tile: int, measured_ns: int) -> dict[str, str | int | float]:
        """What to say of a tile that took so long."""
        facts: dict[str, str | int | float] = {"tile": tile, "box": self.boxes[tile]}
        if self.bytes is not None:
            facts["bytes"] = int(self.bytes[tile])
        estimated = int(self.costs[tile])
        facts |= {"measured_ns": measured_ns, "estimated_ns": estimated}
        if estimated > 0:
            facts["measured_over_estimated"] = measured_ns / estimated
        return facts


def _bytes(graph: TileGraph) -> np.ndarray | None:
    result = np.zeros(graph.num_tiles)
    try:
        ops = graph.program().ops
    except GraphFormatError:  # a graph made by hand, for a simulation
        return None
    for number, op in enumerate(ops):
        tiles, boxes = graph.tiles_of(number)
        result[tiles] = op.family.work(op, boxes).bytes
    return result
