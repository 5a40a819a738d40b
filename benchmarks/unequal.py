"""Throughput where another process takes half of one core (ASPEN, section 4.3)."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import jax

from aspen_jax import aspen
from aspen_jax.errors import InputError
from aspen_jax.report.comparison import PLAIN, TILED
from aspen_jax.report.cores import share_cores
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.child import measure_in_child, serve
from benchmarks.neighbour import neighbour_on
from benchmarks.options import File, Models
from benchmarks.picture import save_bars
from benchmarks.zoo.model import Size

_FREE, _SHARED, _ALL = "the free cores alone", "the shared core alone", "all cores"


@benchmark
def unequal(
    models: Models = ("ResNet50",), rounds: int = 3, seconds: float = 3.0, json: File = None, picture: File = None
) -> Run:
    """Calls a second on all cores while a neighbour keeps one of them busy, beside what the cores reach on their own.

    Each side and each set of cores has a process of its own, in turns. A schedule that adapts reaches the sum of what the free
    cores and the shared core reach alone; one with barriers waits for the shared core in every layer.

    Args:
        models: names in the zoo, as `models` takes them.
        rounds: how often each is measured; the median counts.
        seconds: how long each measurement calls the model.
        json: where to write the figures as well.
        picture: where to draw the calls a second, a PNG, PDF or SVG file.
    """
    if not 0 < seconds < float("inf"):
        raise InputError(f"{seconds} seconds is no time to measure for; take 3, say")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise InputError("this process may use only one core; unequal cores need two or more")
    shared = cores[-1]
    sets = {_FREE: cores[:-1], _SHARED: [shared], _ALL: cores}
    groups = {}
    for name in models:
        rates: dict[str, dict[str, list[float]]] = {side: {which: [] for which in sets} for side in (TILED, PLAIN)}
        for _ in range(rounds):
            for side, by_set in rates.items():
                for which, members in sets.items():
                    words = (side, name, str(seconds), ",".join(map(str, members)), str(shared))
                    by_set[which].append(measure_in_child("benchmarks.unequal", words))
        medians = {side: {which: statistics.median(item) for which, item in by_set.items()} for side, by_set in rates.items()}
        columns = {"calls a second": "", **dict.fromkeys(sets, ".3g"), "share of the sum": ".2f"}
        table = Table(f"{name}, half of core {shared} taken", columns)
        for side, item in medians.items():
            alone = item[_FREE] + item[_SHARED]
            table.add(side, *item.values(), item[_ALL] / alone, samples=rates[side])
            groups[f"{name}, {side}"] = {**item, "sum": alone}
        yield table
        ratio = medians[TILED][_ALL] / medians[PLAIN][_ALL]
        yield f"aspen is {ratio:.2f} times as fast as jax.jit on all cores\n"
    if picture is not None:
        save_bars(picture, f"Half of core {shared} taken", "calls a second", groups)


def _measure(side: str, name: str, seconds: str, cores: str, shared: str) -> Any:
    """Calls a second, in a process bound to these cores, while a neighbour keeps the shared one busy."""
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    share_cores(len(cores.split(",")))
    model = zoo.build(name, Size())
    call = jax.jit(model.apply if side == PLAIN else aspen(model.apply))
    jax.block_until_ready(call(*model.arguments))
    with neighbour_on(int(shared)):
        jax.block_until_ready(call(*model.arguments))
        start, calls = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < float(seconds):
            jax.block_until_ready(call(*model.arguments))
            calls += 1
    return calls / elapsed


if __name__ == "__main__":
    serve(_measure)
