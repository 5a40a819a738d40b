"""What becomes of a function: which ops run as tiles, and what is left to XLA and why."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.cost import equations as cost
from aspen_jax.cost.equations import Cost
from aspen_jax.lowering.share import in_tiles
from aspen_jax.ops.block import BLOCK
from aspen_jax.passes import storage
from aspen_jax.primitive.control_flow import is_control_flow
from aspen_jax.report.html_table import escaped, html_table
from aspen_jax.report.passes import PassesReport
from aspen_jax.targets.target import Notes

if TYPE_CHECKING:
    from jax.extend import core

    from aspen_jax.frontend.trace import Fallback
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.lowering.compile import Compiled, Part

_WIDTH = 120


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
        blocks: how its blocks are multiplied and why so, on GPUs; empty where there is nothing to choose.
        advice: which shapes would be faster; empty where there is nothing to say.
        apart: why it is not computed together with the product that it alone reads; empty where it reads none, or is.
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
    blocks: str = ""
    advice: str = ""
    apart: str = ""


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
        work: what the whole of it costs, as XLA counts; bytes are those that tiles and fallbacks read and write.
        in_tiles: the share of its work that is done in tiles, from 0 to 1: of all operations on elements, of a `scan` in each of
            its turns. 1 where there is nothing to do, nan where a shape is symbolic.
        on_gpu: who runs each of its calls on this process's GPU and why, as sentences; () where there is no GPU.
        tiled: what `parts` tells of, as compiled.
    """

    function: str
    parts: tuple[PartReport, ...]
    fallbacks: tuple[FallbackReport, ...]
    reason: str | None
    work: Cost
    in_tiles: float
    on_gpu: tuple[str, ...] = ()
    tiled: tuple[Part, ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def of(
        cls, function: str, jaxpr: core.Jaxpr, calls: Sequence[tuple[core.ClosedJaxpr, Compiled]], reason: str | None
    ) -> Explanation:
        """Explain the compiled calls that a function consists of; the bodies of their control flow are parts too."""
        compiled = tuple(one for _, item in calls for one in (item, *item.bodies))
        tiled = tuple(part for item in compiled for part in item.parts)
        parts = tuple(map(_report_part, tiled))
        fallbacks = [fallback for item in compiled for fallback in item.fallbacks]
        work = cost.of_jaxpr(jaxpr)
        if reason is None:
            untiled = (cost.of_equation(item.equation).bytes for item in fallbacks if not is_control_flow(item.equation))
            moved = sum(untiled) + sum(op.bytes for part in parts for op in part.ops)
            work = dataclasses.replace(work, bytes=moved)
        share = in_tiles(calls) if reason is None else 0.0
        return cls(function, parts, tuple(_report_fallbacks(fallbacks)), reason, work, share, tiled=tiled)

    @property
    def passes(self) -> PassesReport:
        """What each pass made of the program of each part; print it. All passes run again for that."""
        return PassesReport.of(self.tiled)

    def cost(self) -> dict[str, float]:
        """Work under XLA's names: "flops", "transcendentals" and "bytes accessed"."""
        return {
            "flops": self.work.flops,
            "transcendentals": self.work.transcendentals,
            "bytes accessed": self.work.bytes,
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        """Tables of what `str` says, which notebooks show."""
        first, *_ = str(self).splitlines()
        parts = [f"<div>{escaped(first)}</div>"]
        for index, part in enumerate(self.parts):
            parts.append(f"<div>part {index}: {escaped(repr(part.graph))}</div>")
            rows = [
                (op.name, op.kernel, op.output, str(op.tiles), op.tile, _scaled(op.flops), _scaled(op.bytes), _near(op.source))
                for op in part.ops
            ]
            header = ("op", "kernel", "output", "tiles", "tile", "flops", "bytes", "source")
            parts.append(html_table(header, rows, numbers=(3, 5, 6)))
        if self.reason is not None:
            parts.append(f"<div>left to XLA: all of it, because the function {escaped(self.reason)}</div>")
        else:
            parts.append(f"<div>left to XLA:{'' if self.fallbacks else ' nothing'}</div>")
            parts.append(self.fallback_table() if self.fallbacks else "")
        return "\n".join(parts)

    def fallback_table(self) -> str:
        """What is left to XLA, and why, as a table in HTML."""
        rows = [(str(item.count), f"{item.primitive}({item.shapes})", _near(item.source), item.reason) for item in self.fallbacks]
        return html_table(("count", "equation", "source", "reason"), rows, numbers=(0,))

    def _padding(self) -> Iterator[str]:
        """What padding to whole vectors takes, where there is any."""
        ops = [op for part in self.parts for op in part.ops]
        moved = sum(op.bytes for op in ops if op.name.endswith(storage.PADDED))
        if moved:
            yield ""
            yield f"padding to whole vectors: {_percent(moved / sum(op.bytes for op in ops))} of the bytes of tiles"

    def _lines(self) -> Iterator[str]:
        tiles = sum(part.graph.num_tiles for part in self.parts)
        edges = sum(part.graph.num_edges for part in self.parts)
        calls = "1 custom call" if len(self.parts) == 1 else f"{len(self.parts)} custom calls"
        work = f"{_scaled(self.work.flops)}FLOP, {_scaled(self.work.bytes)}B moved"
        share = f"{_percent(self.in_tiles)} of the flops of {self.function} in tiles"
        yield from textwrap.wrap(f"{share}: {calls}, {tiles} tiles, {edges} edges, {work}", _WIDTH)
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
                    _near(op.source),
                )
                for op in part.ops
            ]
            yield from _table(header, rows, right_aligned=(3, 5, 6, 7), kept={0: 0.5, 1: 1, 2: 1, 4: 1, 8: 0})
        yield from self._padding()
        titles = {"blocks": "blocks of products", "apart": "products apart from those they read", "advice": "advice"}
        for notes, title in titles.items():
            yield from _notes(title, [getattr(op, notes) for part in self.parts for op in part.ops])
        yield ""
        for line in self.on_gpu:
            yield from textwrap.wrap(line, _WIDTH)
        if self.reason is not None:
            yield from textwrap.wrap(f"left to XLA: all of it, because the function {self.reason}", _WIDTH)
        elif self.fallbacks:
            yield "left to XLA:"
            rows = [
                (f"{item.count} x", f"{item.primitive}({item.shapes})", _near(item.source), item.reason)
                for item in self.fallbacks
            ]
            yield from _table(("", "equation", "source", "reason"), rows, right_aligned=(0,), kept={1: 1, 2: 0, 3: None})
        elif self.parts:
            yield "left to XLA: nothing"
        else:
            yield "nothing to compute: each output is an argument or a constant"


def _notes(title: str, notes: Iterable[str]) -> Iterator[str]:
    """Notes on ops that have any, equal ones once."""
    counts = collections.Counter(note for note in notes if note)
    if counts:
        yield ""
        yield f"{title}:"
        yield from _table(("", ""), [(f"{count} x", note) for note, count in counts.items()], (0,), {1: None}, headed=False)


def _report_part(part: Part) -> PartReport:
    graph, notes = part.graph, part.options.target.notes(part.program)
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
                output=", ".join(f"{value.dtype}[{','.join(map(str, value.shape))}]" for value in op.outputs),
                tiles=len(tiles),
                tile="x".join(map(str, largest)) or "1",
                edges=int(edges[number]),
                flops=float(work.flops.sum()),
                bytes=float(work.bytes.sum()),
                source=op.source,
                **notes.get(op, Notes())._asdict(),
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


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right_aligned: Sequence[int],
    kept: Mapping[int, float | None],
    *,
    headed: bool = True,
) -> Iterator[str]:
    """The lines of a table that fits `_WIDTH` columns.

    Args:
        header: titles of the columns.
        rows: a cell for each.
        right_aligned: columns of numbers.
        kept: columns that may be narrower than their cells: which part of a cell's letters is then kept from its beginning, the
            others being from its end; None breaks cells into lines.
        headed: whether the header is among the lines.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    too_wide = sum(widths) + 2 * len(widths) - _WIDTH
    for _ in range(too_wide):
        widths[max(kept, key=lambda column: widths[column])] -= 1
    for row in (header, *rows) if headed else rows:
        cells = [
            textwrap.wrap(cell, width) if kept.get(column, 1) is None else [_fitted(cell, width, kept.get(column, 1) or 0)]
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            columns = enumerate(zip(line, widths, strict=True))
            aligned = [cell.rjust(width) if column in right_aligned else cell.ljust(width) for column, (cell, width) in columns]
            yield ("  " + "  ".join(aligned)).rstrip()


def _fitted(text: str, width: int, kept: float) -> str:
    """The text, or this part of its beginning and its end, in so many columns."""
    if len(text) <= width:
        return text
    head = round((width - 3) * kept)
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


def _near(source: str) -> str:
    """A source line as seen from the working directory, where it is below that."""
    with contextlib.suppress(ValueError, OSError):
        return str(PurePath(source).relative_to(Path.cwd()))
    return source


def _percent(share: float) -> str:
    """A share as rounded per cent, which are 0 or 100 only where it is nothing or all."""
    if math.isnan(share):
        return "an unknown share"
    return f"{share:.0%}" if share in (0, 1) else f"{min(max(round(100 * share), 1), 99)}%"


def _scaled(number: float) -> str:
    """Three digits or more and a prefix, ready for a unit: 12.3 M."""
    if math.isnan(number):
        return "an unknown number of "
    power = min(int(math.log10(max(number, 1)) // 3), 4)
    return f"{number / 1000**power:.4g} {('', 'k', 'M', 'G', 'T')[power]}"
