"""The part `overlap` of `python -m benchmarks split`: what the virtual clock says of tile overlap, and what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from aspen_jax.cost.timing import check_rounds
from aspen_jax.errors import InputError
from benchmarks.split import overlap, overlap_clock

PARTS = ("overlap",)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the part `overlap`.

    Attributes:
        network: of the zoo; it may end in the image size, as resnet18_at_512.
        mbps: links of so many Mbit/s.
        slower: how many times slower than the server the device is on the virtual clock.
        cuts: how many are tried, beside the one before everything.
        rounds: how often each way runs; the fastest counts.
        others: how many processes compute on the device's core where it is measured.
    """

    network: str = "resnet18"
    mbps: tuple[float, ...] = (100, 200, 400)
    slower: float = 1.0
    cuts: int = 8
    rounds: int = 20
    others: int = 0


def run(parts: Sequence[str], options: Options) -> dict[str, Any]:
    """Print the tables, and give the figures.

    Raises:
        InputError: an option does not fit.
    """
    if "overlap" not in parts:
        return {}
    if not 0 < options.slower < float("inf"):
        raise InputError(f"a device that is {options.slower} times slower; take 2, say")
    check_rounds(options.rounds)
    if options.others < 0:
        raise InputError(f"{options.others} other processes on the device's core; take 0 or more")
    if options.cuts < 1 or not options.mbps or min(options.mbps) <= 0:
        raise InputError(
            f"{options.cuts} cuts over links of {options.mbps} Mbit/s; take 1 cut or more, and links that carry bytes"
        )
    expected = list(overlap_clock.predicted(options.network, options.mbps, options.cuts, options.slower))
    overlap.printed(options.network, expected, "by the cost model on the lab's virtual clock")
    taken = list(overlap.measured(options.network, options.mbps, options.cuts, None, options.rounds, options.others))
    overlap.printed(options.network, taken, f"measured with a core on each side, {options.others} others on the device's")
    both = {"expected": expected, "taken": taken}
    return {"overlap": {name: [dataclasses.asdict(row) for row in rows] for name, rows in both.items()}}
