"""Figures in rows, as benchmarks give them."""

from __future__ import annotations

import dataclasses
from typing import Any

from aspen_jax.cost.timing import aligned, duration


@dataclasses.dataclass
class Table:
    """Figures in rows: printed by a benchmark, kept in its record, and shown by `python -m benchmarks page`.

    Attributes:
        title: what stands above.
        columns: how the cells of each column are shown: "s" are seconds, "" is text, others are Python's formats.
        rows: a cell for each column by its title, and further plain data such as samples.
        printed: what is printed instead; "" for nothing.
    """

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    printed: str | None = None

    def add(self, *cells: Any, **more: Any) -> None:
        """Add a row: a cell for each column, None where there is none, and further plain data."""
        self.rows.append({**more, **dict(zip(self.columns, cells, strict=True))})

    def __str__(self) -> str:
        if self.printed is not None:
            return self.printed
        cells = [[shown(row[column], form) for column, form in self.columns.items()] for row in self.rows]
        return "\n".join([*([self.title] if self.title else []), *aligned([list(self.columns), *cells]), ""])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"title": self.title, "columns": self.columns, "rows": self.rows}


def shown(value: Any, form: str) -> str:
    """A cell as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return duration(value) if form == "s" else format(value, form)
