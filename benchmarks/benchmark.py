"""What benchmarks have in common: cores and rounds, results before times, tables, and a record of all figures."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json as jsons
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, get_type_hints

import tyro
from tqdm import tqdm

from aspen_jax.cost.timing import Timing, check_rounds, interleaved
from aspen_jax.errors import AspenError
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from aspen_jax.report.record import write_file, write_record
from benchmarks import page
from benchmarks.table import Table

Options = ParamSpec("Options")
# What a `Timing` has in a table, as `times` gives it.
TIMES = {"min": "s", "median": "s", "spread": ".0%"}
# Options that say where results go, or where a program lies.
_PLACES = ("json", "picture", "pictures", "bytes_picture", "program", "out", "output")
_INTERRUPTED = 130  # the exit status, as of a shell


class Disagreement(AspenError):
    """Two sides give different results."""


# A benchmark gives tables and lines to print, plain data by name that is not printed, pictures that it has drawn into its folder,
# and an exit status other than 0.
Run = Iterator[Table | str | dict[str, Any] | Path | int]


def benchmark(function: Callable[Options, Run]) -> Callable[Options, int]:
    """Make a command of a function that gives tables: it prints them as they come, and writes them to the option `json`.

    Rounds are checked, and both sides share as many cores as there are to be workers, before the function begins. One with an
    option `output` gets a folder, new by default, from whose files it may go on after an interruption. Its record and that
    record's page are written there.

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
        name, file, folder = function.__name__, options.get("json"), None
        if "output" in options:
            folder = options["output"] = options["output"] or Path(time.strftime(f"{name}-%Y%m%d-%H%M%S"))
            file = folder / f"{name}.json"
        tables: list[dict[str, Any]] = []
        plain: dict[str, Any] = {}
        pictures: list[Path] = []
        status = 0
        try:
            for item in function(*bound.args, **bound.kwargs):
                if isinstance(item, int):
                    status = item
                elif isinstance(item, dict):
                    plain |= item
                elif isinstance(item, Path):
                    pictures.append(item)
                elif text := str(item):
                    with tqdm.external_write_mode():
                        print(text, flush=True)
                if isinstance(item, Table):
                    tables.append(item.to_json())
        except KeyboardInterrupt:
            if folder is None or not folder.exists():
                raise
            print(f"\ninterrupted; the same options and --output {folder} go on from here", file=sys.stderr)
            status = _INTERRUPTED
        results = plain or tables
        if file is not None and (results or status != _INTERRUPTED):
            date = time.strftime("%Y-%m-%d", time.gmtime())
            write_record(file, {"benchmark": name, "date": date, **_line(function, options), "results": results})
            if folder is not None:
                shown = [f"![{path.stem}]({path.relative_to(folder)})" for path in pictures]
                write_file(folder / f"{name}.md", "\n".join([*page.lines(page.read(file)), *shown, ""]).encode())
                print(f"all of it is in {folder}")
        return status

    return command


def _line(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The command line: words without names, and settings by name. Fields of an option without a name are settings too."""
    words: list[str] = []
    settings: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, value in settings_of(options).items():
        about = getattr(hints[name], "__metadata__", ())
        if tyro.conf.Positional in about:
            words += map(str, value)
        elif any(getattr(item, "name", None) == "" for item in about):
            settings |= value
        else:
            settings[name] = value
    return {"words": words, "settings": settings}


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


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a command as plain data, without those that say where results go."""

    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, Path) else dataclasses.asdict(value)

    return jsons.loads(jsons.dumps({name: value for name, value in options.items() if name not in _PLACES}, default=plain))
