"""The figures of a run as a page of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.torch_side import COMPILED, EAGER

_MISSING = "-"
# Columns of times: what, side, figure.
_TIMES = (
    ("aspen graph, device", "graph by device", "device_us"),
    ("aspen graph, call", "graph", "call_us"),
    ("XLA, call", "xla", "call_us"),
    ("XLA, back to back", "xla", "back_to_back_us"),
    (f"{COMPILED}, call", COMPILED, "call_us"),
    (f"{COMPILED}, device", COMPILED, "device_us"),
    ("eager torch in a CUDA graph, device", EAGER, "device_us"),
)
_MORE_TIMES = (
    ("aspen graph, back to back", "graph", "back_to_back_us"),
    ("aspen graph, until the call returns", "graph", "dispatched_us"),
    ("aspen graph, until the device has a replay", "graph by device", "host_us"),
    ("aspen stream, device", "stream by device", "device_us"),
    ("aspen stream, call", "stream", "call_us"),
    ("aspen stream, back to back", "stream", "back_to_back_us"),
    ("aspen stream, until the call returns", "stream", "dispatched_us"),
    ("aspen stream, until the device has all", "stream by device", "host_us"),
    ("XLA, until the call returns", "xla", "dispatched_us"),
    ("eager torch in a CUDA graph, call", EAGER, "call_us"),
)
_SIDES = ("graph by device", "stream by device", "graph", "stream", "xla", "xla on the CPU", COMPILED, EAGER)

Times = Mapping[str, Mapping[str, float]]


def share_of_best(times: Times) -> float | None:
    """The fastest device time of the other sides over that of the graph executor; XLA's is its call back to back."""
    theirs = (_of(times, "xla", "back_to_back_us"), _of(times, COMPILED, "device_us"), _of(times, EAGER, "device_us"))
    return _share(theirs, _of(times, "graph by device", "device_us"))


def share_of_best_call(times: Times) -> float | None:
    """The fastest call of the other sides over a call of the graph executor, each alone until its results are ready."""
    return _share([_of(times, side, "call_us") for side in ("xla", COMPILED, EAGER)], _of(times, "graph", "call_us"))


def page(content: Mapping[str, Any]) -> str:
    """The page, from what a record holds."""
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items() if version)
    lines = [f"# {content['device']['name']}, {content['date']}", "", f"`{content['call']}`", "", f"{versions}.", ""]
    lines += [*_times(content["rows"]), *_errors(content["rows"]), *_ops(content["rows"])]
    for name, found in content["programs"].items():
        if found["figures"]:
            lines += _program(name, found["figures"])
    if content["remarks"]:
        lines += ["## What is missing", "", *(f"- {text}" for text in content["remarks"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _times(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from (
        "## Times",
        "",
        "Microseconds, medians. *Device* is by the device's events, runs back to back. *Call* is a call until its results are",
        "ready, alone. *Back to back* is a call among calls given ahead. *Share of the best* is the fastest device time of all",
        "other sides over that of aspen's graph executor. XLA counts with its time back to back.",
        "",
    )
    shares = (("share of the best", share_of_best), ("share of the best, call", share_of_best_call))
    table = [["model, dtype, batch", *(title for title, _, _ in _TIMES), *(title for title, _ in shares)]]
    for row in rows:
        figures = [_microseconds(_of(row["times"], side, figure)) for _, side, figure in _TIMES]
        parts = [share(row["times"]) for _, share in shares]
        table.append([_name(row), *figures, *(_MISSING if part is None else f"{part:.2f}" for part in parts)])
    yield from _table(table)
    table = [["model, dtype, batch", *(title for title, _, _ in _MORE_TIMES)]]
    for row in rows:
        table.append([_name(row), *(_microseconds(_of(row["times"], side, figure)) for _, side, figure in _MORE_TIMES)])
    yield from _table(table)


def _errors(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("## Errors", "", "From float32 on the CPU, as a share of the largest output.", "")
    table = [["model, dtype, batch", *(_title(side) for side in _SIDES), "aspen"]]
    for row in rows:
        found = row["errors"]
        errors = found.get("against float32 on the CPU", {})
        verdict = _MISSING if not found else f"wrong: {', '.join(found['wrong'])}" if found["wrong"] else "right"
        table.append([_name(row), *(f"{errors[side]:.1e}" if side in errors else _MISSING for side in _SIDES), verdict])
    yield from _table(table)


def _ops(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("## Launches by op", "", "gpu.json has the op of each launch.", "")
    counts = [Counter(kernel["op"] for kernel in row["kernels"]) for row in rows]
    families = [family for family, _ in sum(counts, Counter()).most_common()]
    table = [["model, dtype, batch", "tiles", "launches", "kernels", *families]]
    for row, count in zip(rows, counts, strict=True):
        kernels = len({(kernel["part"], kernel["kernel"]) for kernel in row["kernels"]})
        numbers = (row.get("tiles"), count.total(), kernels, *(count[family] for family in families))
        table.append([_name(row), *(str(number) if number else _MISSING for number in numbers)])
    yield from _table(table)


def _program(name: str, figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from (f"## {name.capitalize()}", "")
    yield from _table([["what", "value", "unit"], *([item["what"], f"{item['value']:.3g}", item["unit"]] for item in figures)])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    title, *rest = rows
    yield from (_line(title), _line(["---"] * len(title)), *map(_line, rest), "")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['dtype']}, {row['batch']}"


def _title(side: str) -> str:
    return f"aspen {side}" if side.split()[0] in ("graph", "stream") else side


def _of(times: Times, side: str, figure: str) -> float | None:
    return times.get(side, {}).get(figure)


def _share(theirs: Sequence[float | None], ours: float | None) -> float | None:
    present = [item for item in theirs if item is not None]
    return min(present) / ours if present and ours else None


def _microseconds(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
