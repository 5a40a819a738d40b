"""How a model's time falls with workers, and the share of its work that is parallel (ASPEN, section 4.2)."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax

import aspen_jax
from aspen_jax import aspen, num_workers
from aspen_jax.cost.timing import Timing
from aspen_jax.errors import InputError
from benchmarks import zoo
from benchmarks.bandwidth import read_bandwidth, with_bandwidth
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.picture import save_curves
from benchmarks.simulation import measured_graph, simulated_span
from benchmarks.zoo.model import Model, Size


@benchmark
def scaling(
    models: Models = ("ResNet50", "bert-base"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 15,
    workers: int | None = None,
    beyond: tuple[int, ...] = (4, 8, 16, 32, 64),
    bandwidth: float = 102.4,
    json: File = None,
    picture: File = None,
) -> Run:
    """Models with 1, 2, ... workers: times, speed-up over one, and Karp and Flatt's fraction of work that is parallel.

    Each number of workers has a graph of its own, as a user with so many would have. Beyond the cores that there are, Algorithm 1
    is simulated on the times that the graph's tiles take one worker of this machine. So it is where times are measured: that
    shows the error. Simulated times are given without a limit of memory, and where weights come from memory in each call.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often each is timed.
        workers: the most workers; all usable cores by default.
        beyond: more numbers of workers, which are only simulated; none for no simulation at all.
        bandwidth: GB/s of the simulated machine's memory; by default that of the paper's, with four channels of DDR4-3200. Where
            times are measured, this machine's is measured too.
        json: where to write the figures as well.
        picture: where to draw the speed-ups, a PNG, PDF or SVG file.
    """
    if min(beyond, default=1) < 1:
        raise InputError(f"{min(beyond)} workers are to be simulated; take 1 or more")
    if not 0 < bandwidth < float("inf"):
        raise InputError(f"a memory of {bandwidth} GB/s is to be simulated; take more than 0")
    here = range(1, num_workers() + 1)
    rates = {count: read_bandwidth(count) for count in here} | {count: bandwidth * 1e9 for count in beyond if count not in here}
    if beyond:
        memory = [{"workers": count, "GB/s": rate / 1e9} for count, rate in rates.items()]
        said = ", ".join(f"{rate / 1e9:.3g} GB/s for {count}" for count, rate in rates.items())
        yield Table("Memory", {"workers": "d", "GB/s": ".3g"}, memory, f"memory: {said} workers\n")
    curves = {}
    for name in models:
        model = zoo.build(name, size)
        timings = _timings(model, here, rounds)
        simulated = {count: _simulated(model, count, rates[count], rounds) for count in sorted(rates)} if beyond else {}
        yield _table(name, timings, simulated)
        speedups = {count: timings[1].minimum / timing.minimum for count, timing in timings.items()}
        curves[name] = list(speedups.items())
        for kind, title in _TITLES.items() if simulated else ():
            spans = {count: getattr(item, kind) for count, item in simulated.items()}
            curves[f"{name}, {title}"] = [(count, spans[1] / span) for count, span in spans.items()]
    if picture is not None:
        curves["linear"] = [(count, count) for count in sorted({*here, *beyond})]
        save_curves(picture, f"Batch {size.batch}", "workers", "speed-up over one worker", curves, log_x=True, log_y=True)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Simulated nanoseconds from the first tile's begin to the last one's end.

    Attributes:
        free: each tile takes what it takes one worker alone.
        limited: at least what its bytes take at its lane's share of the memory's bandwidth.
    """

    free: int
    limited: int


_TITLES = {"free": "simulated", "limited": "simulated, with a limit of memory"}


def parallel_fraction(speedup: float, workers: int) -> float:
    """One less Karp and Flatt's serial fraction (1/speedup - 1/workers) / (1 - 1/workers)."""
    return 1 - (1 / speedup - 1 / workers) / (1 - 1 / workers)


def _table(name: str, timings: dict[int, Timing], simulated: dict[int, Spans]) -> Table:
    columns = {"workers": "d", "min": "s", "median": "s", "speed-up": ".2f", "fraction": ".3f"}
    for title in _TITLES.values() if simulated else ():
        columns |= {title: "s", f"{title}: error": "+.1%", f"{title}: speed-up": ".2f", f"{title}: fraction": ".3f"}
    table = Table(name, columns)
    for count in sorted({*timings, *simulated}):
        timing = timings.get(count)
        cells: list[float | None] = [None] * 4
        if timing is not None:
            cells = [timing.minimum, timing.median, *_gain(timings[1].minimum, timing.minimum, count)]
        for kind in _TITLES if simulated else ():
            span = getattr(simulated[count], kind) * 1e-9
            error = None if timing is None else span / timing.minimum - 1
            cells += [span, error, *_gain(getattr(simulated[1], kind) * 1e-9, span, count)]
        table.add(count, *cells, samples_s=timing.samples if timing else ())
    return table


def _gain(alone: float, time: float, count: int) -> list[float | None]:
    return [alone / time, parallel_fraction(alone / time, count) if count > 1 else None]


def _timings(model: Model, counts: range, rounds: int) -> dict[int, Timing]:
    """Times by number of workers, in turns; changing the number and a call to warm up are not counted."""
    calls: dict[int, Callable[[], Any]] = {}
    for count in counts:
        aspen_jax.set_num_workers(count)
        calls[count] = functools.partial(jax.jit(aspen(functools.partial(model.apply, model.params))), *model.inputs)
        jax.block_until_ready(calls[count]())
    samples: dict[int, list[float]] = {count: [] for count in calls}
    for _ in range(rounds):
        for count, call in calls.items():
            aspen_jax.set_num_workers(count)
            jax.block_until_ready(call())
            start = time.perf_counter()
            jax.block_until_ready(call())
            samples[count].append(time.perf_counter() - start)
    return {count: Timing(tuple(times)) for count, times in samples.items()}


def _simulated(model: Model, count: int, bytes_per_second: float, rounds: int) -> Spans:
    measured = measured_graph(model, count, rounds)
    limited = with_bandwidth(measured.nanoseconds, measured.num_bytes, count, bytes_per_second)
    return Spans(*(simulated_span(measured.graph, times, count) for times in (measured.nanoseconds, limited)))
