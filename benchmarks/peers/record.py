"""What was measured: as JSON, from which an interrupted run goes on, and as tables."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aspen_jax.cost.timing import Timing, speedup
from aspen_jax.errors import InputError
from benchmarks.benchmark import TIMES, times
from benchmarks.peers.sides import ASPEN, JIT, TENSORFLOW
from benchmarks.record import Record, of_this_build
from benchmarks.table import Table

TIMED, DISAGREES, FAILED, ABSENT = "timed", "disagrees", "failed", "absent"


@dataclasses.dataclass(frozen=True)
class SideResult:
    """How one side did with one model.

    Attributes:
        state: whether it was timed, or why not.
        message: what there is to say about that, such as a remedy.
        difference: largest difference of its outputs, as a share of the largest expected one; None where it gave none.
        start_s: seconds until its first answer, compilation included.
        version: of its library.
        samples_s: seconds a call, one from each round.
    """

    state: str
    message: str = ""
    difference: float | None = None
    start_s: float | None = None
    version: str = ""
    samples_s: tuple[float, ...] = ()

    @property
    def timing(self) -> Timing | None:
        """The side's times; None where it was not timed."""
        return Timing(self.samples_s) if self.state == TIMED else None


@dataclasses.dataclass(frozen=True)
class ModelResult:
    """How all sides did with one model.

    Attributes:
        name: of the network, with the size of its inputs where one was named.
        flops: floating-point operations of a call.
        peak_flops: FLOP/s of the multiply-add loop on all threads, one from each round.
        onnx: where the ONNX model came from.
        sides: by name.
    """

    name: str
    flops: float
    peak_flops: tuple[float, ...]
    onnx: str
    sides: dict[str, SideResult]

    def share_of_peak(self, side: str) -> float:
        """The share of the multiply-add peak that a side reaches at its minimum; NaN where it was not timed."""
        timing = self.sides[side].timing
        return self.flops / timing.minimum / max(self.peak_flops) if timing and self.peak_flops else math.nan

    def times_as_fast(self, side: str, other: str) -> float:
        """How many times as fast as the other a side is, from round to round; NaN where one of them was not timed."""
        slow, fast = (self.sides[name].timing if name in self.sides else None for name in (other, side))
        return speedup(slow, fast) if slow and fast else math.nan

    def ahead(self, side: str) -> float:
        """How many times as fast as a side aspen is."""
        return self.times_as_fast(ASPEN, side)

    def best_peer(self) -> str | None:
        """The fastest of the others, by the median."""
        timings = {name: side.timing for name, side in self.sides.items() if name != ASPEN and side.timing}
        return min(timings, key=lambda name: timings[name].median, default=None)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ModelResult:
        sides = {name: SideResult(**{**side, "samples_s": tuple(side["samples_s"])}) for name, side in content["sides"].items()}
        return cls(**{**content, "peak_flops": tuple(content["peak_flops"]), "sides": sides})


class Answers(Record):
    """What an interrupted run has measured: answers.json in a folder."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Read it.

        Raises:
            InputError: it cannot be written, or what is there was measured with other settings, code or machine.
        """
        super().__init__(folder / "answers.json", "peers", {**settings, **of_this_build()})
        try:
            self.models = {name: ModelResult.from_json(item) for name, item in self.results.items()}
        except (KeyError, TypeError) as error:
            raise InputError(f"{str(self.path)!r} is no record of this benchmark ({error}); name another folder") from error

    def keep(self, name: str, result: ModelResult) -> None:
        """Keep one more result, on disk, under a name."""
        self.models[name] = dataclasses.replace(result, name=name)
        self.add(name, dataclasses.asdict(self.models[name]))


def of_model(result: ModelResult) -> Table:
    """How all sides did with one model."""
    peak = f"{max(result.peak_flops) / 1e9:.0f} GFLOP/s" if result.peak_flops else "not measured"
    about = f"{result.flops / 1e9:.3g} GFLOP; multiply-add peak of the same run {peak}; ONNX model {result.onnx}"
    forms = {**TIMES, "of peak": ".0%", "difference": ".1e", "first answer": "s", "about": ""}
    table = Table(f"{result.name}: {about}", {"": "", **forms})
    for name, side in result.sides.items():
        cells = (None, None, None, None)
        if timing := side.timing:
            cells = (*times(timing), result.share_of_peak(name))
        state = "" if timing else f"{side.state}: {side.message}" if side.message else side.state
        table.add(f"{name} {side.version}".strip(), *cells, side.difference, side.start_s, state, samples_s=list(side.samples_s))
    return table


def of_all(results: Sequence[ModelResult]) -> Iterator[Table]:
    """All sides' minima on all models, how far ahead aspen is, and how many times as fast as one side the others are."""
    names = list(dict.fromkeys(name for result in results for name in result.sides))
    ahead = Table(
        "Minima of the rounds. Ahead: how many times as fast aspen is, the median of the rounds' quotients",
        {"model": "", **dict.fromkeys(names, "s"), "fastest peer": "", "ahead": ".2f", "ahead of jax.jit": ".2f"},
    )
    for result in results:
        cells = [_minimum(result.sides.get(name)) for name in names]
        best = result.best_peer()
        ahead.add(result.name, *cells, best, result.ahead(best) if best else math.nan, result.ahead(JIT))
    other = reference(results)
    beside = Table(f"Times as fast as {other}", {"model": "", **dict.fromkeys(names, ".2f")})
    for result in results:
        beside.add(result.name, *(result.times_as_fast(name, other) for name in names))
    for table in (ahead, beside):
        _add_means(table)
        yield table


def reference(results: Sequence[ModelResult]) -> str:
    """The side beside which the others are shown: TensorFlow, as in ASPEN's figure 6, where it was timed; else jax.jit."""
    return TENSORFLOW if any(not math.isnan(result.times_as_fast(TENSORFLOW, TENSORFLOW)) for result in results) else JIT


def _minimum(side: SideResult | None) -> float | str | None:
    timing = side.timing if side else None
    return timing.minimum if timing else side.state if side else None


def _add_means(table: Table) -> None:
    """A last row with geometric means of the quotients; those that are unknown become empty cells."""
    quotients = [column for column, form in table.columns.items() if form == ".2f"]
    known = {column: [row[column] for row in table.rows if not math.isnan(row[column])] for column in quotients}
    for row in table.rows:
        row |= {column: None for column in quotients if math.isnan(row[column])}
    means = {column: statistics.geometric_mean(numbers) if numbers else None for column, numbers in known.items()}
    table.rows.append({**dict.fromkeys(table.columns), "model": "geometric mean", **means})
