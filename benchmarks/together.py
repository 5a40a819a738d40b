"""Models that share the workers: two at once against one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aspen_jax.cost.timing import Timing, interleaved
from aspen_jax.report.cores import share_cores
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models
from benchmarks.servers import checked_call

_IN_TURN, _AT_ONCE = "in turn", "at once"


@benchmark
def together(models: Models = ("resnet50", "bert-base"), rounds: int = 15, json: File = None) -> Run:
    """Two models at once against one after the other.

    Args:
        models: names in the zoo: each of the others runs together with the first one, and the first with itself.
        rounds: how often two models are timed.
        json: where to write the figures as well.
    """
    share_cores()
    first = checked_call(models[0])
    for name in (*models[1:], models[0]):
        second = first if name == models[0] else checked_call(name)
        timings = _timed(first, second, rounds)
        table = Table(f"{models[0]} and {name}", {"": "", "min": "s", "median": "s"})
        for side, timing in timings.items():
            table.add(side, timing.minimum, timing.median, samples_s=timing.samples)
        yield table
        yield f"at once takes {timings[_AT_ONCE].minimum / timings[_IN_TURN].minimum:.3f} of the time in turn\n"


def _timed(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> dict[str, Timing]:
    with ThreadPoolExecutor(2) as threads:

        def at_once() -> None:
            for item in [threads.submit(first), threads.submit(second)]:
                item.result()

        def in_turn() -> None:
            for call in (first, second):
                threads.submit(call).result()

        return interleaved({_IN_TURN: in_turn, _AT_ONCE: at_once}, rounds)
