"""How a model's time falls with workers, and the share of its work that is parallel (ASPEN, section 4.2)."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import aspen_jax
from aspen_jax import aspen
from aspen_jax.cost.timing import Timing, aligned, check_rounds, duration
from aspen_jax.errors import InputError
from aspen_jax.ir.random_array import random_array
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.report.cores import share_cores
from aspen_jax.report.record import write_record
from benchmarks.models import zoo
from benchmarks.models.model import Model, Size
from benchmarks.options import File, Models, Sizes
from benchmarks.picture import save_curves
from benchmarks.simulation import simulated_span, span, times_with_scheduling


def scaling(
    models: Models = ("ResNet50", "bert-base"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 15,
    workers: int | None = None,
    beyond: tuple[int, ...] = (4, 8, 16, 32, 64),
    json: File = None,
    picture: File = None,
) -> int:
    """Models with 1, 2, ... workers: times, speed-up over one, and Karp and Flatt's fraction of work that is parallel.

    Each number of workers has a graph of its own, as a user with so many would have. Beyond the cores that there are Algorithm 1
    is simulated on the times that the graph's tiles take one worker; so it is where times are measured, to compare.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often each is timed.
        workers: the most workers; all usable cores by default.
        beyond: more numbers of workers, which are only simulated; none for no simulation at all.
        json: where to write the figures as well.
        picture: where to draw the speed-ups, a PNG, PDF or SVG file.
    """
    check_rounds(rounds)
    if min(beyond, default=1) < 1:
        raise InputError(f"{min(beyond)} workers are to be simulated; take 1 or more")
    counts = range(1, share_cores(workers) + 1)
    results, curves = [], {}
    for name in models:
        model = zoo.build(name, size)
        calls = {}
        for count in counts:
            aspen_jax.set_num_workers(count)
            calls[count] = functools.partial(jax.jit(aspen(model.apply)), *model.arguments)
            jax.block_until_ready(calls[count]())
        timings = _with_workers(calls, rounds)
        speedups = {count: timings[1].minimum / timing.minimum for count, timing in timings.items()}
        spans = _simulated(model, sorted({*counts, *beyond}), rounds) if beyond else {}
        simulated = {count: spans[1] / item for count, item in spans.items()}
        rows: list[tuple[str, ...]] = [
            ("workers", "min", "median", "speed-up", "parallel fraction", "simulated speed-up", "parallel fraction")
        ]
        for count in sorted({*timings, *simulated}):
            cells = [duration(timings[count].minimum), duration(timings[count].median)] if count in timings else ["", ""]
            for by_count in (speedups, simulated):
                known = count in by_count
                cells.append(f"{by_count[count]:.2f}" if known else "")
                cells.append(f"{parallel_fraction(by_count[count], count):.3f}" if known and count > 1 else "")
            rows.append((str(count), *cells))
        print("\n".join([name, *aligned(rows), ""]), flush=True)
        curves[name] = list(speedups.items())
        if simulated:
            curves[f"{name}, simulated"] = list(simulated.items())
        results.append(
            {
                "name": name,
                "batch": size.batch,
                "timings": {count: timing.to_json() for count, timing in timings.items()},
                "parallel_fraction": _fractions(speedups),
                "simulated_span_ns": spans,
                "simulated_parallel_fraction": _fractions(simulated),
            }
        )
    if json is not None:
        write_record(json, {"benchmark": "scaling", "results": results})
    if picture is not None:
        curves["linear"] = [(count, count) for count in sorted({*counts, *beyond})]
        save_curves(picture, f"Batch {size.batch}", "workers", "speed-up over one worker", curves, log_x=True, log_y=True)
    return 0


def parallel_fraction(speedup: float, workers: int) -> float:
    """One less Karp and Flatt's serial fraction (1/speedup - 1/workers) / (1 - 1/workers)."""
    return 1 - (1 / speedup - 1 / workers) / (1 - 1 / workers)


def _with_workers(calls: dict[int, Callable[[], Any]], rounds: int) -> dict[int, Timing]:
    """Times by number of workers, in turns; changing the number and a call to warm up are not counted."""
    samples: dict[int, list[float]] = {count: [] for count in calls}
    for _ in range(rounds):
        for count, call in calls.items():
            aspen_jax.set_num_workers(count)
            jax.block_until_ready(call())
            start = time.perf_counter()
            jax.block_until_ready(call())
            samples[count].append(time.perf_counter() - start)
    return {count: Timing(tuple(times)) for count, times in samples.items()}


def _fractions(speedups: dict[int, float]) -> dict[int, float]:
    return {count: parallel_fraction(speedup, count) for count, speedup in speedups.items() if count > 1}


def _simulated(model: Model, counts: Sequence[int], rounds: int) -> dict[int, int]:
    """Nanoseconds from the first tile to the last for each number of workers; the largest part where XLA keeps some."""
    aspen_jax.set_num_workers(1)
    jaxpr = jax.make_jaxpr(model.apply)(*model.arguments)
    result = {}
    for count in counts:
        parts = compile_jaxpr(jaxpr, Options(num_workers=count)).parts
        graph = max((part.graph for part in parts), key=lambda graph: graph.num_ops)
        inputs = [random_array(value) for value in graph.program().inputs]
        timelines = [graph.timeline(*inputs) for _ in range(rounds)]
        result[count] = simulated_span(graph, times_with_scheduling(min(timelines, key=span)), count)
    return result
