"""What becomes of a function: which ops run as tiles, and what is left to XLA and why."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.ops.block import BLOCK

if TYPE_CHECKING:
    from aspen_jax.compile import Compiled, Part
    from aspen_jax.frontend import Fallback
    from aspen_jax.tilegraph import TileGraph


@dataclasses.dataclass(frozen=True)
class OpReport:
    """An op of a part.

    Attributes:
        name: named scopes and primitive that it came from.
        kernel: the kernel that runs its tiles; "+n" says that n element-wise instructions run on its result in place.
        output: dtype and shape of what it writes.
        tiles: how many tiles it has.
        tile: shape of its largest tile.
        edges: how many tiles of others, or of its own, its tiles wait for, counted for each tile.
        flops: floating-point operations.
        bytes: bytes read and written by its tiles.
        source: the user's source line; may be empty.
    """

    name: str
    kernel: str
    output: str
    tiles: int
    tile: str
    edges: int
    flops: float
    bytes: float
    source: str


@dataclasses.dataclass(frozen=True)
class PartReport:
    """A part of a function that is one graph of tiles, run by one custom call."""

    graph: TileGraph
    ops: tuple[OpReport, ...]


@dataclasses.dataclass(frozen=True)
class FallbackReport:
    """Equations of one kind that are left to XLA.

    Attributes:
        primitive: name of the JAX primitive.
        shapes: dtypes and shapes of its operands.
        reason: why no tile kernel runs it.
        source: the user's source line; may be empty.
        count: how many equations are alike in all this.
    """

    primitive: str
    shapes: str
    reason: str
    source: str
    count: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What becomes of a function for arguments of certain shapes; `str` gives a table.

    Attributes:
        function: the function's name.
        parts: its graphs of tiles, in the order in which they run.
        fallbacks: what is left to XLA around them.
        reason: why all of the function is left to XLA, or None.
    """

    function: str
    parts: tuple[PartReport, ...]
    fallbacks: tuple[FallbackReport, ...]
    reason: str | None

    @classmethod
    def of(cls, function: str, compiled: Iterable[Compiled], reason: str | None) -> Explanation:
        """From the compiled calls that the function consists of."""
        compiled = tuple(compiled)
        parts = tuple(_report_part(part) for item in compiled for part in item.parts)
        return cls(function, parts, tuple(_report_fallbacks(item for one in compiled for item in one.fallbacks)), reason)

    def cost(self) -> dict[str, float]:
        """Work of all parts: "flops" and "bytes accessed"."""
        ops = [op for part in self.parts for op in part.ops]
        return {"flops": float(sum(op.flops for op in ops)), "bytes accessed": float(sum(op.bytes for op in ops))}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        cost = self.cost()
        tiles = sum(part.graph.num_tiles for part in self.parts)
        edges = sum(part.graph.num_edges for part in self.parts)
        calls = "1 custom call" if len(self.parts) == 1 else f"{len(self.parts)} custom calls"
        work = f"{_scaled(cost['flops'])}FLOP, {_scaled(cost['bytes accessed'])}B moved"
        yield f"{self.function}: {calls}, {tiles} tiles, {edges} edges, {work}"
        for index, part in enumerate(self.parts):
            yield ""
            yield f"part {index}: {part.graph!r}"
            header = ("op", "kernel", "output", "tiles", "tile", "edges", "flops", "bytes", "source")
            rows = [
                (
                    op.name,
                    op.kernel,
                    op.output,
                    str(op.tiles),
                    op.tile,
                    str(op.edges),
                    *map(_scaled, (op.flops, op.bytes)),
                    op.source,
                )
                for op in part.ops
            ]
            yield from _table(header, rows, right_aligned=(3, 5, 6, 7))
        yield ""
        if self.reason is not None:
            yield f"left to XLA: all of it, because the function {self.reason}"
        elif self.fallbacks:
            yield "left to XLA:"
            rows = [(f"{item.count} x", f"{item.primitive}({item.shapes})", item.source, item.reason) for item in self.fallbacks]
            yield from _table(("", "equation", "source", "reason"), rows, right_aligned=(0,))
        elif self.parts:
            yield "left to XLA: nothing"
        else:
            yield "nothing to compute: each output is an argument or a constant"


def _report_part(part: Part) -> PartReport:
    graph = part.graph
    _, children = graph.dag.edges()
    edges = np.bincount(graph.tile_ops[children], minlength=graph.num_ops)
    reports = []
    for number, op in enumerate(part.program.ops):
        tiles, boxes = graph.tiles_of(number)
        work = op.family.work(op, boxes)
        extents = boxes[:, :, 1] - boxes[:, :, 0]
        largest = extents[extents.prod(axis=1).argmax()] if len(extents) else ()
        epilogue = "" if op.program is None or op.family is BLOCK else f"+{len(op.program.instructions)}"
        reports.append(
            OpReport(
                name=op.name,
                kernel=op.family.kernel + epilogue,
                output=f"{op.output.dtype}[{','.join(map(str, op.output.shape))}]",
                tiles=len(tiles),
                tile="x".join(map(str, largest)) or "1",
                edges=int(edges[number]),
                flops=float(work.flops.sum()),
                bytes=float(work.bytes.sum()),
                source=op.source,
            )
        )
    return PartReport(graph, tuple(reports))


def _report_fallbacks(fallbacks: Iterable[Fallback]) -> Iterator[FallbackReport]:
    counts = collections.Counter(
        (
            item.equation.primitive.name,
            ", ".join(atom.aval.str_short(short_dtypes=True) for atom in item.equation.invars),
            item.reason,
            item.source,
        )
        for item in fallbacks
    )
    for (primitive, shapes, reason, source), count in counts.items():
        yield FallbackReport(primitive, shapes, reason, source, count)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: Sequence[int]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        columns = enumerate(zip(row, widths, strict=True))
        cells = [cell.rjust(width) if column in right_aligned else cell.ljust(width) for column, (cell, width) in columns]
        yield ("  " + "  ".join(cells)).rstrip()


def _scaled(number: float) -> str:
    """Three digits or more and a prefix, ready for a unit: 12.3 M."""
    power = min(int(math.log10(max(number, 1)) // 3), 4)
    return f"{number / 1000**power:.4g} {('', 'k', 'M', 'G', 'T')[power]}"
