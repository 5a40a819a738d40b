"""The command `python -m benchmarks page`: the tables of records as Markdown, for docs/results/."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from aspen_jax.errors import InputError
from benchmarks.markdown import table
from benchmarks.table import Table

# What is said of a machine, and the word before it.
_MACHINE = {"gpu": "", "cpu": "", "usable cores": "cores: ", "workers": "workers: ", "cpu target in use": "", "driver": "driver "}
_MACHINE |= {"commit": "commit ", "aspen_jax": "aspen_jax ", "jax": "jax ", "torch": "PyTorch ", "python": "Python "}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def page(records: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECORD.json")], /) -> int:
    """Print the Markdown tables of records that benchmarks wrote: one cell a number, units in the header, the machine above.

    Args:
        records: files that `--json` named.
    """
    for path in records:
        print("\n".join(lines(read(path))))
    return 0


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A record's page, line by line."""
    about = [f"{word}{record['machine'][key]}" for key, word in _MACHINE.items() if record["machine"].get(key) is not None]
    title = ", ".join(filter(None, (record["benchmark"], record.get("date"))))
    words = [shlex.quote(word) for word in record.get("words", ())]
    command = " ".join(["python -m benchmarks", record["benchmark"], *words, *_options(record["settings"])])
    yield from (f"## {title}", "", f"{', '.join(about)}.", "", f"`{command}`", "")
    for found in tables(record["results"]):
        if found.rows:
            yield from (*([found.title, ""] if found.title else []), *_markdown(found), "")


def tables(results: Any, title: str = "") -> Iterator[Table]:
    """The tables of results: those that a benchmark gave, and one for each group of other plain data, without samples."""
    if isinstance(results, dict) and {"title", "columns", "rows"} <= results.keys():
        yield Table(", ".join(filter(None, (title, results["title"]))), results["columns"], results["rows"])
        return
    named = results if isinstance(results, dict) else dict(enumerate(results))
    rows = {name: dict(_cells(item)) for name, item in named.items() if isinstance(item, dict) and "columns" not in item}
    if columns := dict.fromkeys(column for row in rows.values() for column in row):
        names = {"": ""} if isinstance(results, dict) else {}
        forms = {column: "s" if column.endswith("_s") else "" for column in columns}
        yield Table(title, {**names, **forms}, [{"": str(name), **row} for name, row in rows.items() if row])
    for name, item in named.items():
        if isinstance(item, dict | list) and not rows.get(name):
            yield from tables(item, ", ".join(filter(None, (title, name if isinstance(name, str) else ""))))


def _cells(item: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in item.items():
        if isinstance(value, dict):
            yield from _cells(value, f"{before}{name} ")
        elif not isinstance(value, list):
            yield f"{before}{name}", value


def _markdown(found: Table) -> list[str]:
    """A table whose times all have one unit, that of their median."""
    forms = found.columns.items()
    times = [row[title] for title, form in forms if form == "s" for row in found.rows if isinstance(row.get(title), float)]
    middle = statistics.median(map(abs, times)) if times else 1.0
    unit, name = next((item for item in _UNITS if middle >= item[0]), _UNITS[-1])
    header = [
        f"{title.removesuffix('_s')}, {name}" if form == "s" else f"{title}, %" if form.endswith("%") else title
        for title, form in forms
    ]
    return table(header, [[_cell(row.get(title), form, unit) for title, form in forms] for row in found.rows])


def _cell(value: Any, form: str, unit: float) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value).strip()
    if form == "s" or (not form and isinstance(value, float)):
        return _three_digits(value / unit if form else value)
    return format(value, form).removesuffix("%")


def _three_digits(number: float) -> str:
    if not 1 <= abs(number) < math.inf:
        return f"{number:.3g}"
    return f"{number:.{max(0, 2 - int(math.log10(abs(number))))}f}"


def _options(settings: Mapping[str, Any], group: str = "") -> Iterator[str]:
    """The words of a command line that has these settings; those of a group follow its name and a dot."""
    for name, value in settings.items():
        option = f"--{group}{name.replace('_', '-')}"
        if isinstance(value, dict):
            yield from _options(value, f"{name.replace('_', '-')}.")
        elif isinstance(value, bool):
            yield option if value else f"--{group}no-{name.replace('_', '-')}"
        elif value is not None and value != []:
            values: Sequence[Any] = value if isinstance(value, list) else [value]
            yield from (option, *(shlex.quote(str(item)) for item in values))


def read(path: Path) -> dict[str, Any]:
    """A record.

    Raises:
        InputError: the file is none.
    """
    try:
        content = json.loads(path.read_text())
        return {**content, **{key: content[key] for key in ("benchmark", "machine", "settings", "results")}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{str(path)!r} is no record of a benchmark ({error!r}); name a file that --json wrote") from error
