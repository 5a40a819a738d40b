"""Tables in HTML of texts from anywhere: a name may hold what a browser would take for markup."""

from __future__ import annotations

import html
from collections.abc import Sequence

from aspen_jax.report.labels import bounded

_LONGEST_CELL = 1_000


def escaped(text: str) -> str:
    """Text as HTML shows it, of bounded length."""
    return html.escape(bounded(text, _LONGEST_CELL))


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table.

    Args:
        header: titles of the columns.
        rows: a cell for each.
        numbers: columns of numbers, which go to the right.
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        styles = [' style="text-align: right"' if column in numbers else "" for column in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{s}>{escaped(cell)}</{tag}>" for s, cell in zip(styles, cells, strict=True)) + "</tr>"

    return "\n".join(["<table>", line("th", header), *(line("td", row) for row in rows), "</table>"])
