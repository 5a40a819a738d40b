"""What benchmarks have in common: cores and rounds, results before times, tables, and a record of all figures."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json as jsons
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, get_type_hints

import tyro

from aspen_jax.cost.timing import Timing, aligned, check_rounds, duration, interleaved
from aspen_jax.errors import AspenError
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from aspen_jax.report.record import write_record

Options = ParamSpec("Options")
# What a `Timing` has in a table, as `times` gives it.
TIMES = {"min": "s", "median": "s", "spread": ".0%"}
# Options that say where results go, or where a program lies.
_PLACES = ("json", "picture", "pictures", "bytes_picture", "program", "out")


class Disagreement(AspenError):
    """Two sides give different results."""


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


# A benchmark gives tables and lines to print, plain data by name that is not printed, and an exit status other than 0.
Run = Iterator[Table | str | dict[str, Any] | int]


def benchmark(function: Callable[Options, Run]) -> Callable[Options, int]:
    """Make a command of a function that gives tables: it prints them as they come, and writes them to the option `json`.

    Rounds are checked, and both sides share as many cores as there are to be workers, before the function begins.

    Raises:
        InputError: there are no rounds or too few cores.
    """

    @functools.wraps(function)
    def command(*args: Options.args, **kwargs: Options.kwargs) -> int:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        options = bound.arguments
        if isinstance(rounds := options.get("rounds"), int):
            check_rounds(rounds)
        if "workers" in options:
            options["workers"] = share_cores(options["workers"])
        tables: list[dict[str, Any]] = []
        plain: dict[str, Any] = {}
        status = 0
        for item in function(*bound.args, **bound.kwargs):
            if isinstance(item, int):
                status = item
            elif isinstance(item, dict):
                plain |= item
            elif text := str(item):
                print(text, flush=True)
            if isinstance(item, Table):
                tables.append(item.to_json())
        if options.get("json") is not None:
            date = time.strftime("%Y-%m-%d", time.gmtime())
            words = _words(function)
            record = {
                "benchmark": function.__name__,
                "date": date,
                "words": [str(word) for name in words for word in options.get(name, ())],
                "settings": settings_of({name: value for name, value in options.items() if name not in words}),
                "results": plain or tables,
            }
            write_record(options["json"], record)
        return status

    return command


def _words(function: Callable[..., Any]) -> list[str]:
    """The parameters of a command that stand on its line without their names."""
    hints = get_type_hints(function, include_extras=True).items()
    return [name for name, hint in hints if tyro.conf.Positional in getattr(hint, "__metadata__", ())]


def check_agreement(name: str, calls: Mapping[str, Callable[[], Any]], tolerance: float | None = None) -> None:
    """Call all sides and compare what they give with the first one.

    Raises:
        Disagreement: one differs by more than the tolerance, a share of the largest output.
    """
    expected = next(iter(calls.values()))()
    for side, call in calls.items():
        difference = largest_difference(call(), expected)
        if not difference <= (TOLERANCE if tolerance is None else tolerance):
            raise Disagreement(f"{name}: {side} differs by {difference:.1e} of the largest output, so nothing was timed")


def timed(name: str, calls: Mapping[str, Callable[[], Any]], rounds: int, tolerance: float | None = None) -> dict[str, Timing]:
    """Time sides in turns, after checking that they agree.

    Raises:
        Disagreement: they do not.
    """
    check_agreement(name, calls, tolerance)
    return interleaved(calls, rounds)


def times(timing: Timing) -> tuple[float, float, float]:
    """The cells of `TIMES`."""
    return timing.minimum, timing.median, timing.spread


def samples(timings: Mapping[Any, Timing]) -> dict[str, Any]:
    """All samples by side, for a row."""
    return {"samples_s": {str(side): list(timing.samples) for side, timing in timings.items()}}


def shown(value: Any, form: str) -> str:
    """A cell as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return duration(value) if form == "s" else format(value, form)


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a command as plain data, without those that say where results go."""

    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, Path) else dataclasses.asdict(value)

    return jsons.loads(jsons.dumps({name: value for name, value in options.items() if name not in _PLACES}, default=plain))
