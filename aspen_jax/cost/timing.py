"""Interleaved timing: functions take turns, so that a noisy neighbour slows all of them alike."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from aspen_jax.errors import InputError

# A sample is never shorter, so that the clock and the loop around the call do not count.
_SHORTEST_SAMPLE_S = 1e-3


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that a call took, a sample from each round."""

    samples: tuple[float, ...]

    @property
    def minimum(self) -> float:
        """The fastest round: what the code can do when nobody disturbs it."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """What to expect on this machine as it was."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Distance between the quartiles as a share of the median: how noisy the machine was."""
        if len(self.samples) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (third - first) / self.median

    def to_json(self) -> dict[str, Any]:
        """Statistics and samples, in seconds."""
        return {"min_s": self.minimum, "median_s": self.median, "spread": self.spread, "samples_s": list(self.samples)}


def speedup(slow: Timing, fast: Timing) -> float:
    """How many times as fast the second one is: the median over the rounds, in each of which both met the same neighbours."""
    return statistics.median(a / b for a, b in zip(slow.samples, fast.samples, strict=True))


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    on_round: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time functions in turns.

    Each is called once or more to warm up. In each round every function is sampled once, a sample being as many calls as take
    a millisecond, and each round begins with another function.

    Args:
        functions: each without arguments; what it returns is waited for.
        rounds: samples of each.
        on_round: called after each round.
        clock: seconds since some moment.

    Raises:
        InputError: there are no rounds.
    """
    check_rounds(rounds)
    calls = {name: _calls_a_sample(function, clock) for name, function in functions.items()}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(_seconds(functions[name], calls[name], clock))
        if on_round is not None:
            on_round()
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def fastest(functions: Sequence[Callable[[], object]], budget: float, least_rounds: int = 5) -> list[float]:
    """The least seconds of each function, called in turns.

    Args:
        functions: each without arguments, and done when it returns. They are called once before.
        budget: seconds after which no round begins.
        least_rounds: as many there are in any case.
    """
    best = [math.inf] * len(functions)
    for function in functions:
        function()
    start = time.perf_counter()
    for done in itertools.count(1):
        for index, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - begin)
        if done >= least_rounds and time.perf_counter() - start > budget:
            return best
    raise AssertionError


def check_rounds(rounds: int) -> None:
    """Refuse to measure nothing, before much is done for it.

    Raises:
        InputError: there are no rounds.
    """
    if rounds < 1:
        raise InputError(f"the number of rounds is {rounds}; take 1 or more (20 give a fair median)")


def table(timings: Mapping[str, Timing], flops: float = 0) -> str:
    """A line for each function: minimum, median and spread; and the rate at its minimum, if each does `flops` operations."""
    rows = [("", "min", "median", "spread", *(["GFLOP/s"] if flops else []))]
    for name, item in timings.items():
        rate = [f"{flops / item.minimum / 1e9:.3g}"] if flops else []
        rows.append((name, duration(item.minimum), duration(item.median), f"{item.spread:.0%}", *rate))
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the cells below each other, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = [
        [cell.ljust(width) if not index else cell.rjust(width) for cell in column]
        for index, (column, width) in enumerate(zip(zip(*rows, strict=True), widths, strict=True))
    ]
    return ["  ".join(cells) for cells in zip(*columns, strict=True)]


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    units = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
    factor, unit = next((item for item in units if seconds >= item[0]), units[-1])
    number = seconds / factor
    return f"{number:.{max(0, 2 - int(math.log10(max(number, 1))))}f} {unit}"


def _calls_a_sample(function: Callable[[], Any], clock: Callable[[], float]) -> int:
    _seconds(function, 1, clock)  # compiles
    calls = 1
    while (sample := calls * _seconds(function, calls, clock)) < _SHORTEST_SAMPLE_S:
        calls = math.ceil(calls * min(10.0, 1.2 * _SHORTEST_SAMPLE_S / max(sample, 1e-9)))
    return calls


def _seconds(function: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Seconds a call."""
    start = clock()
    for _ in range(calls):
        jax.block_until_ready(function())
    return (clock() - start) / calls
