"""The figures of a run as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.benchmark import Table
from benchmarks.gpu.torch_side import COMPILED, EAGER

_ROW = "model, dtype, batch"
_ABOUT_TIMES = (
    "Microseconds, medians. *Device* is by the device's events, runs back to back. *Call* is a call until its results are "
    "ready, alone. *Back to back* is a call among calls given ahead. *Share of the best* is the fastest device time of all "
    "other sides over that of aspen's graph executor. XLA counts with its time back to back."
)
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


def tables(rows: Sequence[Mapping[str, Any]], programs: Mapping[str, Any], remarks: Sequence[str]) -> Iterator[Table]:
    """The tables; the rows of the first one have all that is known of a row of the run."""
    times = Table(_ABOUT_TIMES, dict.fromkeys((_ROW, *(title for title, _, _ in _TIMES), *_SHARES), ""))
    more = Table("Microseconds, more of them", dict.fromkeys((_ROW, *(title for title, _, _ in _MORE_TIMES)), ""))
    about_errors = "Errors from float32 on the CPU, as a share of the largest output"
    errors = Table(about_errors, {_ROW: "", **{_title(side): ".1e" for side in _SIDES}, "aspen": ""})
    counts = [Counter(kernel["op"] for kernel in row["kernels"]) for row in rows]
    families = [family for family, _ in sum(counts, Counter()).most_common()]
    launches = Table("Launches by op", dict.fromkeys((_ROW, "tiles", "launches", "kernels", *families), ""))
    for row, count in zip(rows, counts, strict=True):
        name, own = f"{row['model']}, {row['dtype']}, {row['batch']}", row["times"]
        shares = (share(own) for share in _SHARES.values())
        times.add(name, *(_of(own, side, figure) for _, side, figure in _TIMES), *shares, **row)
        more.add(name, *(_of(own, side, figure) for _, side, figure in _MORE_TIMES))
        found = row["errors"]
        verdict = None if not found else f"wrong: {', '.join(found['wrong'])}" if found["wrong"] else "right"
        errors.add(name, *(found.get("against float32 on the CPU", {}).get(side) for side in _SIDES), verdict)
        kernels = len({(kernel["part"], kernel["kernel"]) for kernel in row["kernels"]})
        launches.add(name, row.get("tiles"), count.total(), kernels, *(count[family] or None for family in families))
    yield from (times, more, errors, launches)
    for name, found in programs.items():
        if found["figures"]:
            yield Table(name.capitalize(), {"what": "", "value": "", "unit": ""}, list(found["figures"]))
    if remarks:
        yield Table("What is missing", {"remark": ""}, [{"remark": text} for text in remarks])


_SHARES = {"share of the best": share_of_best, "share of the best, call": share_of_best_call}


def _title(side: str) -> str:
    return f"aspen {side}" if side.split()[0] in ("graph", "stream") else side


def _of(times: Times, side: str, figure: str) -> float | None:
    return times.get(side, {}).get(figure)


def _share(theirs: Sequence[float | None], ours: float | None) -> float | None:
    present = [item for item in theirs if item is not None]
    return min(present) / ours if present and ours else None
