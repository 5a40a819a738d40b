"""The command `python -m benchmarks split`."""

from __future__ import annotations

import dataclasses

from aspen_jax.cost.timing import duration
from aspen_jax.errors import InputError
from aspen_jax.report.record import write_record
from benchmarks.markdown import table
from benchmarks.options import File, Names
from benchmarks.picture import save_curves
from benchmarks.split import bed, link, overlap, overlap_clock

PARTS = ("link", "overlap")
_CUTS, _ROUNDS = 8, 20  # of overlap


def split(
    parts: Names = PARTS,
    network: str = "mobilenet_v2",
    links: Names = ("3G", "4G", "WiFi"),
    mbps: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64),
    sides: Names = link.SIDES,
    bits: tuple[int, ...] = (8,),
    seconds: float = 3.0,
    slower: float = 1.0,
    namespaces: bool = False,
    json: File = None,
    picture: File = None,
) -> int:
    """DynO's figures: latency and throughput over shaped links, beside device-only, server-only and Neurosurgeon.

    Args:
        parts: link; overlap: latency of one request where head, link and tail overlap, at the links of --mbps.
        network: of the zoo; it may end in the image size, as resnet50_at_128.
        links: of the paper: 3G, 4G, WiFi.
        mbps: further links of so many Mbit/s both ways, without delay.
        sides: who takes part.
        bits: numbers of bits that ours may choose.
        seconds: for each measurement.
        slower: how many times slower the device is in what overlap predicts.
        namespaces: shape links by the kernel, as root; there is no delay then.
        json: where to write the figures as well.
        picture: where to draw throughput against bandwidth.
    """
    if unknown := set(parts) - set(PARTS):
        raise InputError(f"there is no part {min(unknown)!r}; take {', '.join(PARTS)}")
    if unknown := set(links) - set(bed.PROFILES):
        raise InputError(f"there is no link {min(unknown)!r}; take {', '.join(bed.PROFILES)}, or --mbps")
    if not 0 < slower < float("inf"):
        raise InputError(f"a device that is {slower} times slower; take 2, say")
    if namespaces and not bed.has_namespaces():
        raise InputError("network namespaces need root, ip and tc; leave out --namespaces")
    if "overlap" in parts:
        expected = list(overlap_clock.predicted(network, mbps, _CUTS, slower))
        overlap.printed(network, expected, "by the cost model on the lab's virtual clock")
        taken = list(overlap.measured(network, mbps, _CUTS, None, _ROUNDS))
        overlap.printed(network, taken, "measured with a core on each side")
        if json is not None and "link" not in parts:
            both = {"expected": expected, "taken": taken}
            record = {name: [dataclasses.asdict(row) for row in found] for name, found in both.items()}
            write_record(json, {"network": network, "overlap": record})
    if "link" not in parts:
        return 0
    shapes = {f"{rate:g} Mbit/s": bed.Shape(rate * 1e6, rate * 1e6, 0.0) for rate in mbps}
    shapes |= {name: bed.PROFILES[name] for name in links}
    rows = []
    for name, row in link.measured(network, shapes, sides, bits, seconds, namespaces):
        rows.append((name, row))
    header = ["link", "side", "cut", "bits", "latency", "predicted", "calls/s", "predicted", "bytes", "difference"]
    print("\n".join(["", f"{network}, a core on each side.", "", *table(header, [_cells(*item) for item in rows])]))
    gained = link.gains(rows)
    cells = [[name, *(f"{number:.2f}" for number in numbers)] for name, numbers in gained.items()]
    print(
        "\n".join(["", "Throughput.", "", *table(["link", "local : remote", "ours : their better", "ours : best side"], cells)])
    )
    if json is not None:
        write_record(json, {"network": network, "rows": [{"link": name, **dataclasses.asdict(row)} for name, row in rows]})
    if picture is not None:
        curves = {
            side: [(shapes[name].up / 1e6, row.throughput) for name, row in rows if row.side == side and name not in links]
            for side in sides
        }
        save_curves(picture, f"{network} over a link", "Mbit/s", "calls a second", curves, log_x=True)
    return 0


def _cells(name: str, row: link.Row) -> list[str]:
    latency = "" if row.predicted_latency is None else duration(row.predicted_latency)
    throughput = "" if row.predicted_throughput is None else f"{row.predicted_throughput:.2f}"
    cut, bits = row.configuration.cut, row.configuration.bits
    return [
        name,
        row.side,
        "last" if cut < 0 else str(cut),
        "all" if bits is None else str(bits),
        duration(row.latency),
        latency,
        f"{row.throughput:.2f}",
        throughput,
        f"{row.sent_bytes:.0f}",
        f"{row.difference:.1e}",
    ]
