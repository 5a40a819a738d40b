"""The part `link` of `python -m benchmarks split`: tables and a picture of what benchmarks/split/link.py measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aspen_jax.cost.timing import duration
from aspen_jax.errors import InputError
from benchmarks.markdown import table
from benchmarks.options import Names
from benchmarks.picture import save_curves
from benchmarks.split import bed, link

PARTS = ("link",)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the parts that run over shaped links.

    Attributes:
        network: of the zoo; it may end in the image size, as resnet50_at_128.
        links: of the paper: 3G, 4G, WiFi.
        mbps: of the part `link`: further links of so many Mbit/s both ways, without delay.
        sides: of the part `link`: who takes part.
        bits: numbers of bits that ours may choose.
        seconds: for each measurement.
        namespaces: shape links by the kernel, as root; there is no delay then.
    """

    network: str = "mobilenet_v2"
    links: Names = ("3G", "4G", "WiFi")
    mbps: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64)
    sides: Names = link.SIDES
    bits: tuple[int, ...] = (8,)
    seconds: float = 3.0
    namespaces: bool = False


def shapes(options: Options, mbps: Sequence[float]) -> dict[str, bed.Shape]:
    """The links by name: those without a name of so many Mbit/s, then those of the paper.

    Raises:
        InputError: an option does not fit.
    """
    if unknown := set(options.links) - set(bed.PROFILES):
        raise InputError(f"there is no link {min(unknown)!r}; take {', '.join(bed.PROFILES)}, or other Mbit/s")
    if options.namespaces and not bed.has_namespaces():
        raise InputError("network namespaces need root, ip and tc; leave out the option namespaces")
    if not options.bits:
        raise InputError("there are no numbers of bits to choose from; take 8, say")
    found = {f"{rate:g} Mbit/s": bed.Shape(rate * 1e6, rate * 1e6, 0.0) for rate in mbps}
    return found | {name: bed.PROFILES[name] for name in options.links}


def run(parts: Sequence[str], options: Options, pictures: Path | None) -> dict[str, Any]:
    """Print the tables, draw the picture, and give the figures.

    Raises:
        InputError: an option does not fit.
    """
    if "link" not in parts:
        return {}
    named = shapes(options, options.mbps)
    rows = list(link.measured(options.network, named, options.sides, options.bits, options.seconds, options.namespaces))
    header = ["link", "side", "cut", "bits", "latency", "predicted", "calls/s", "predicted", "bytes", "difference"]
    print("\n".join(["", f"{options.network}, a core on each side.", "", *table(header, [_cells(*item) for item in rows])]))
    gained = [[name, *(f"{number:.2f}" for number in numbers)] for name, numbers in link.gains(rows).items()]
    print(
        "\n".join(["", "Calls a second.", "", *table(["link", "local : remote", "ours : their better", "ours : best"], gained)])
    )
    if pictures is not None:
        curves = {
            side: [(named[name].up / 1e6, row.throughput) for name, row in rows if row.side == side and name not in options.links]
            for side in options.sides
        }
        save_curves(pictures / "link.png", f"{options.network} over a link", "Mbit/s", "calls a second", curves, log_x=True)
    return {"link": {"network": options.network, "rows": [{"link": name, **dataclasses.asdict(row)} for name, row in rows]}}


def cut_name(configuration: link.Configuration) -> str:
    """How a table names the configuration's cut."""
    return "last" if configuration.cut < 0 else str(configuration.cut)


def rate(calls: float | None) -> str:
    """Calls a second in a table; nothing where they are not known."""
    return "" if calls is None else f"{calls:.2f}"


def _cells(name: str, row: link.Row) -> list[str]:
    bits = row.configuration.bits
    return [
        name,
        row.side,
        cut_name(row.configuration),
        "all" if bits is None else str(bits),
        duration(row.latency),
        "" if row.predicted_latency is None else duration(row.predicted_latency),
        rate(row.throughput),
        rate(row.predicted_throughput),
        f"{row.sent_bytes:.0f}",
        f"{row.difference:.1e}",
    ]
