"""Energy of a call (DynO's figure 13), by the counters of a processor's packages (RAPL, as Linux shows them under powercap).

A package has no counter for each process. Where device and server share a machine, a call's energy is that of both.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aspen_jax.cost.timing import duration
from benchmarks.markdown import table
from benchmarks.split import link, over_links
from benchmarks.split.loads import SIDES, Setting

PARTS = ("energy",)

_ZONES = Path("/sys/class/powercap")
_CALLS = 50  # the counters move once a millisecond


@dataclasses.dataclass(frozen=True)
class Counter:
    """What a package has used, in microjoules.

    Attributes:
        path: of the number.
        most: the counter begins anew beyond that.
    """

    path: Path
    most: int

    def read(self) -> int:
        """The number now."""
        return int(self.path.read_text())


def counters(zones: Path = _ZONES) -> list[Counter]:
    """The counters of the machine's packages that this process may read."""
    found = []
    for zone in sorted(zones.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):
                counter = Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
                counter.read()
                found.append(counter)
        except (OSError, ValueError):
            continue  # of another kind, or for the superuser alone
    return found


def joules(packages: Sequence[Counter], call: Callable[[], Any]) -> float:
    """What the packages use while something is done. It must end before a counter begins anew twice."""
    before = [package.read() for package in packages]
    call()
    used = ((package.read() - start) % (package.most + 1) for package, start in zip(packages, before, strict=True))
    return sum(used) / 1e6


@dataclasses.dataclass(frozen=True)
class Used:
    """What a call of one side uses over one link.

    Attributes:
        link: its name.
        side: of benchmarks/split/loads.py.
        cut: where the function is cut.
        latency: of a call, in seconds.
        joules: of a call.
        above_idle: of a call, without what the packages use at rest in that time.
    """

    link: str
    side: str
    cut: str
    latency: float
    joules: float
    above_idle: float


def run(parts: Sequence[str], over: over_links.Options, zones: Path = _ZONES) -> dict[str, Any]:
    """Print the table, and give the figures: None where no counter can be read."""
    if not set(parts) & set(PARTS):
        return {}
    packages = counters(zones)
    if not packages:
        print(f"\nEnergy is not measurable here: no counter of a package can be read under {zones}.", flush=True)
        return {"energy": None}
    setting = Setting(over.network, over_links.shapes(over, ()), over.bits, over.seconds, over.namespaces)
    rows = list(_measured(setting, packages))
    header = ["link", "side", "cut", "latency", "J a call", "above idle"]
    cells = [[row.link, row.side, row.cut, duration(row.latency), f"{row.joules:.3g}", f"{row.above_idle:.3g}"] for row in rows]
    print("\n".join(["", f"{setting.network}, energy of both sides.", "", *table(header, cells)]), flush=True)
    return {"energy": {"network": over.network, "rows": list(map(dataclasses.asdict, rows))}}


def _measured(setting: Setting, packages: Sequence[Counter]) -> Iterator[Used]:
    for name, pair, profile in setting.pairs():
        watts = joules(packages, lambda: time.sleep(setting.seconds)) / setting.seconds
        for side in SIDES:
            asked, _ = link.configuration(side, profile, pair.link, setting.bits)
            began = time.perf_counter()
            used = joules(packages, lambda pair=pair, asked=asked: pair.stages(asked, _CALLS))
            idle = watts * (time.perf_counter() - began)
            latency = pair.stages(asked, 1)["latency"]
            yield Used(name, side, over_links.cut_name(asked), latency, used / _CALLS, (used - idle) / _CALLS)
