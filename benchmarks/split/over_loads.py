"""Parts of `python -m benchmarks split` that benchmarks/split/loads.py measures: their tables and pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aspen_jax.cost.timing import duration
from aspen_jax.errors import InputError
from benchmarks.markdown import table
from benchmarks.picture import save_curves
from benchmarks.split import loads, over_links
from benchmarks.split.loads import Setting

PARTS = ("stages", "load", "deadline")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the parts `stages`, `load` and `deadline`, which run over the links `over.links`.

    Attributes:
        cuts: at how many cuts `stages` runs, beside the first and the last one.
        others: how many processes compute on the same core: each makes it slower by as much again.
        deadlines: of the part `deadline`, as multiples of the time that the device takes alone.
    """

    cuts: int = 16
    others: tuple[int, ...] = (0, 1, 3, 7)
    deadlines: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)


def run(parts: Sequence[str], over: over_links.Options, options: Options, pictures: Path | None) -> dict[str, Any]:
    """Print the tables, draw the pictures, and give the figures.

    Raises:
        InputError: an option does not fit.
    """
    asked = [part for part in PARTS if part in parts]
    if not asked:
        return {}
    if options.cuts < 1 or not options.others or min(options.others) < 0:
        raise InputError(f"{options}: take 1 cut or more, and 0 other processes or more")
    if not options.deadlines or not all(0 < item < float("inf") for item in options.deadlines):
        raise InputError(f"deadlines of {options.deadlines} times the device's own time: take some of more than 0")
    shapes = over_links.shapes(over, ())
    setting = Setting(over.network, shapes, over.bits, over.seconds, over.namespaces)
    shown: dict[str, Callable[[Setting, Options, Path | None], list[Any]]] = {
        "stages": _stages, "load": _throughputs, "deadline": _spared,
    }  # fmt: skip
    found = {part: shown[part](setting, options, pictures and pictures / f"{part}.png") for part in asked}
    return {part: {"network": over.network, "rows": list(map(dataclasses.asdict, rows))} for part, rows in found.items()}


def _stages(setting: Setting, options: Options, picture: Path | None) -> list[loads.Stages]:
    rows = list(loads.stages(setting, options.cuts))
    header = ["link", "cut", "head", "pack", "link", "tail", "latency", "predicted"]
    cells = [
        [row.link, str(row.cut), *map(duration, (row.head, row.pack, row.link_time, row.tail, row.latency, row.predicted))]
        for row in rows
    ]
    _print(f"{setting.network}, stages of a call at {setting.bits[0]} bits, a core on each side.", header, cells)
    if picture is not None:
        curves = {
            f"{name}, {what}": [(float(row.cut), 1e3 * of(row)) for row in rows if row.link == name]
            for name in setting.shapes
            for what, of in {
                "device": lambda row: row.head + row.pack,
                "and link": lambda row: row.head + row.pack + row.link_time,
                "and server": lambda row: row.latency,
            }.items()
        }
        save_curves(picture, f"{setting.network}: stages of a call", "cut", "ms", curves)
    return rows


def _throughputs(setting: Setting, options: Options, picture: Path | None) -> list[loads.Loaded]:
    rows = list(loads.throughputs(setting, options.others))
    header = ["link", "others on", "others", "slower device", "slower server", "side", "cut", "calls/s", "predicted", "latency"]
    cells = [
        [
            row.link, row.core, str(row.others), f"{row.device_load:.2f}", f"{row.server_load:.2f}", row.row.side,
            over_links.cut_name(row.row.configuration), f"{row.row.throughput:.2f}",
            over_links.rate(row.row.predicted_throughput), duration(row.row.latency),
        ]
        for row in rows
    ]  # fmt: skip
    _print(f"{setting.network}, a core on each side, which others use too.", header, cells)
    if picture is not None:
        curves = {
            f"{name}, {side}": [
                (1.0 + row.others, row.row.throughput)
                for row in rows
                if (row.link, row.core, row.row.side) == (name, loads.ON_DEVICE, side)
            ]
            for name in setting.shapes
            for side in loads.SIDES
        }
        title = f"{setting.network} on a device that others use too"
        save_curves(picture, title, "processes on the device's core", "calls a second", curves, log_x=True, log_y=True)
    return rows


def _spared(setting: Setting, options: Options, picture: Path | None) -> list[loads.Spared]:
    rows = list(loads.spared(setting, options.others, options.deadlines))
    header = ["link", "others", "slower device", "deadline", "cut", "latency", "predicted", "server spared", "predicted"]
    cells = [[row.link, str(row.others), f"{row.device_load:.2f}", duration(row.deadline), *_chosen_cells(row)] for row in rows]
    _print(f"{setting.network}, deadlines with the least work for the server.", header, cells)
    if picture is not None:
        deadlines = sorted({(row.link, row.deadline) for row in rows})
        curves = {
            f"{name}, {duration(deadline)}": [
                (1.0 + row.others, 100 * row.share)
                for row in rows
                if (row.link, row.deadline) == (name, deadline) and row.share is not None
            ]
            for name, deadline in deadlines
        }
        curves = {name: points for name, points in curves.items() if points}
        title = f"{setting.network}: what the server is spared"
        save_curves(picture, title, "processes on the device's core", "% of the server's computation", curves, log_x=True)
    return rows


def _chosen_cells(row: loads.Spared) -> list[str]:
    if row.configuration is None or row.latency is None or row.predicted is None:
        return ["none keeps it", "", "", "", ""]
    shares = (f"{share:.0%}" for share in (row.share, row.predicted_share) if share is not None)
    return [over_links.cut_name(row.configuration), duration(row.latency), duration(row.predicted), *shares]


def _print(title: str, header: list[str], cells: list[list[str]]) -> None:
    print("\n".join(["", title, "", *table(header, cells)]), flush=True)
