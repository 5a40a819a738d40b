"""Rates that predict times on a GPU (aspen_jax/lowering/gpus.json), from launches and calls that were timed there.

The record is plain data:

    gpu, source: the kind as JAX names it, and where it was measured
    launches: of some networks those of one kernel, of which there may be several: the network, the kind, flops and bytes of the
        busiest place (aspen_jax/lowering/cuda_cost.py), microseconds of one by `ncu`
    rows: of some networks a call: our amounts and XLA's; microseconds of a graph on the device, of a call of it, of XLA's

`ncu` times a launch alone, which takes longer than in a graph. How much longer follows from the networks that have both.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy import optimize

from aspen_jax.cuda.machine import Gpu
from aspen_jax.lowering import cuda_cost
from aspen_jax.lowering.choice import Rates, time_of
from benchmarks.markdown import table

RECORD = Path(__file__).with_name("h200.json")

# No node of a graph takes less (docs/results/h200.md).
_LEAST_LAUNCH_NS = 730.0

# A factor that is so far off, as a logarithm, counts no longer with its square: one launch may be another kind in truth.
_OUTLIER = 0.3

# Of errors that are alike in size most are smaller than twice their root mean square.
_MOST = 2.0

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A row as it is predicted by rates that have not seen its network; microseconds.

    Attributes:
        row: its words.
        device: of a graph, predicted and measured.
        call: of a call of the graph.
        xla: of XLA's call.
    """

    row: str
    device: tuple[float, float]
    call: tuple[float, float]
    xla: tuple[float, float]

    @property
    def error(self) -> float:
        """The logarithm of the factor by which the ratio of both calls errs."""
        return math.log(self.call[0] / self.xla[0] * self.xla[1] / self.call[1])


def gpu_fit(record: Path = RECORD, out: Path | None = None) -> int:
    """Rates that predict times on a GPU from a record of what was timed there, and how much they err on networks left out.

    Args:
        record: what was timed.
        out: where the entry for aspen_jax/lowering/gpus.json goes; it is printed by default.
    """
    known = json.loads(record.read_text())
    print("\n".join([*page(held_out(known)), "", *page_of_kinds(known)]))
    text = json.dumps(entry(known), indent=1) + "\n"
    print(text) if out is None else out.write_text(text)
    return 0


def entry(record: Record) -> dict[str, Any]:
    """What gpus.json says of the record's GPU, by its name."""
    rates = fitted(record)
    error = math.exp(_MOST * math.sqrt(np.mean([item.error**2 for item in held_out(record)])))
    return {
        record["gpu"]: {
            "source": record["source"],
            "error": _rounded(error),
            "xla": {name: _rounded(rate) for name, rate in rates.xla.items()},
            "tiles": {name: _rounded(rate) for name, rate in rates.tiles.items()},
        }
    }


def held_out(record: Record) -> list[Prediction]:
    """Each row predicted from what was measured of other networks."""
    found = []
    for row in record["rows"]:
        rates = fitted(record, without=_network(row["row"]))
        graph = time_of(row["graph"], rates.tiles) / 1e3
        device = graph - rates.tiles["calls"] / 1e3
        xla = time_of(row["xla"], rates.xla) / 1e3
        measured = (row[name] for name in ("device_us", "call_us", "xla_us"))
        pairs = zip((device, graph, xla), measured, strict=True)
        found.append(Prediction(row["row"], *pairs))
    return found


def page(predictions: Sequence[Prediction]) -> list[str]:
    """A table of predictions beside what was measured."""
    sides = ("graph, device", "graph, call", "XLA, call")
    header = ["row", *(f"{side}: {what}" for side in sides for what in ("predicted", "measured")), "error of the ratio"]
    rows = [
        [
            item.row,
            *(f"{value:.0f}" for pair in (item.device, item.call, item.xla) for value in pair),
            f"{math.exp(item.error):.2f}",
        ]
        for item in predictions
    ]
    return table(header, rows)


def page_of_kinds(record: Record) -> list[str]:
    """A table of launches alone: each kind's time beside what rates predict that have not seen the network."""
    measured, predicted, errors = (collections.defaultdict(list) for _ in range(3))
    for network in sorted({_network(item["row"]) for item in record["launches"]}):
        rates = _by_kind([item for item in record["launches"] if _network(item["row"]) != network])
        for item in record["launches"]:
            if _network(item["row"]) == network:
                kind, amounts = item["kind"], (1.0, item["flops"], item["bytes"])
                us = sum(rate * amount for rate, amount in zip(rates[kind], amounts, strict=True)) / 1e3
                measured[kind] += [item["us"]] * item["count"]
                predicted[kind] += [us] * item["count"]
                errors[kind] += [abs(math.log(us / item["us"]))] * item["count"]
    rows = [
        [
            kind,
            str(len(measured[kind])),
            f"{sum(measured[kind]):.0f}",
            f"{sum(predicted[kind]):.0f}",
            f"{math.exp(median(errors[kind])):.2f}",
        ]
        for kind in cuda_cost.KINDS
        if measured[kind]
    ]
    return table(["kind", "launches", "measured", "predicted", "median factor of error"], rows)


def fitted(record: Record, without: str = "") -> Rates:
    """The rates that fit a record, or what is left of it without one network."""
    launches = [item for item in record["launches"] if _network(item["row"]) != without]
    rows = [item for item in record["rows"] if _network(item["row"]) != without]
    alone = _longer_alone(launches, rows)
    tiles = {"calls": 1e3 * float(np.mean([row["call_us"] - row["device_us"] for row in rows]))}
    for kind, (launch, flops, nbytes) in _by_kind(launches).items():
        tiles |= {f"{kind} launches": max(launch - alone, _LEAST_LAUNCH_NS), f"{kind} flops": flops, f"{kind} bytes": nbytes}
    tiles["sums of clusters"] = Gpu.add_ns  # not measured
    names = ("calls", "kernels", "flops", "bytes")
    xla = _rates([[row["xla"][name] for name in names] for row in rows], [1e3 * row["xla_us"] for row in rows])
    return Rates(dict(zip(names, xla, strict=True)), tiles)


def _by_kind(launches: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The rates of each kind; those of all launches for kinds that have none."""
    of_all = _launch_rates(launches)
    return {kind: _launch_rates([item for item in launches if item["kind"] == kind]) or of_all for kind in cuda_cost.KINDS}


def _launch_rates(launches: Sequence[Mapping[str, Any]]) -> list[float]:
    """Nanoseconds of a launch by `ncu`, of a flop and of a byte; [] without launches."""
    if not launches:
        return []
    every = [item for item in launches for _ in range(item["count"])]
    return _rates([[1.0, item["flops"], item["bytes"]] for item in every], [1e3 * item["us"] for item in every])


def _longer_alone(launches: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> float:
    """By how many nanoseconds a launch takes longer by `ncu` than in a graph."""
    found = []
    for row in rows:
        own = [item for item in launches if item["row"] == row["row"]]
        if own:
            alone = sum(item["us"] * item["count"] for item in own)
            found.append(1e3 * (alone - row["device_us"]) / sum(item["count"] for item in own))
    return max(0.0, median(found))


def _rates(amounts: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """The rates, none below 0, under which times are the nearest by factors; 0 of an amount that none has."""
    share = np.asarray(amounts) / np.asarray(times)[:, None]
    # Each column in units of the rate that would explain all of the sample with the most of it, so that steps are alike.
    scale = 1 / np.where(share.max(axis=0) > 0, share.max(axis=0), np.inf)
    scaled = share * scale

    def errors(unknown: np.ndarray) -> np.ndarray:
        return np.log(scaled @ unknown + 1e-9)

    first = optimize.nnls(scaled, np.ones(len(scaled)))[0] + 1e-3
    found = optimize.least_squares(errors, first, bounds=(0, np.inf), loss="soft_l1", f_scale=_OUTLIER, max_nfev=400).x
    return [float(rate) for rate in found * scale]


def _network(row: str) -> str:
    return row.partition(":")[0]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
