"""How a model's time falls with workers, and the share of its work that is parallel (ASPEN, section 4.2)."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax

import aspen_jax
from aspen_jax import aspen
from aspen_jax.report.cores import share_cores
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import Timing, aligned, check_rounds, duration
from benchmarks.models import zoo
from benchmarks.models.model import Size
from benchmarks.options import File, Models, Sizes
from benchmarks.picture import save_curves


def scaling(
    models: Models = ("ResNet50", "bert-base"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 15,
    workers: int | None = None,
    json: File = None,
    picture: File = None,
) -> int:
    """Models with 1, 2, ... workers: times, speed-up over one, and Karp and Flatt's fraction of work that is parallel.

    Each number of workers has a graph of its own, as a user with so many would have.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often each is timed.
        workers: the most workers; all usable cores by default.
        json: where to write the figures as well.
        picture: where to draw the speed-ups, a PNG, PDF or SVG file.
    """
    check_rounds(rounds)
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
        rows = [("workers", "min", "median", "speed-up", "parallel fraction")]
        for count, timing in timings.items():
            fraction = f"{parallel_fraction(speedups[count], count):.3f}" if count > 1 else ""
            rows.append((str(count), duration(timing.minimum), duration(timing.median), f"{speedups[count]:.2f}", fraction))
        print("\n".join([name, *aligned(rows), ""]), flush=True)
        curves[name] = list(speedups.items())
        results.append(
            {
                "name": name,
                "batch": size.batch,
                "timings": {count: timing.to_json() for count, timing in timings.items()},
                "parallel_fraction": {count: parallel_fraction(speedups[count], count) for count in counts if count > 1},
            }
        )
    if json is not None:
        write_record(json, {"benchmark": "scaling", "results": results})
    if picture is not None:
        curves["linear"] = [(count, count) for count in counts]
        save_curves(picture, f"Batch {size.batch}", "workers", "speed-up over one worker", curves)
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
