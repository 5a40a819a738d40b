"""What was measured: as JSON, from which an interrupted run goes on, and as Markdown tables."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aspen_jax.cost.timing import Timing, duration, speedup
from aspen_jax.errors import InputError
from benchmarks.markdown import table
from benchmarks.peers.sides import ASPEN, JIT, TENSORFLOW
from benchmarks.record import Record, of_this_build

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


class Answers:
    """A folder with peers.json, peers.md and two pictures."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Open a folder, and read what an interrupted run has measured.

        Raises:
            InputError: it cannot be written, or what is there was measured with other settings, code or machine.
        """
        self._record = Record(folder / "peers.json", "peers", {**settings, **of_this_build()})
        self.markdown, self.times, self.speedups = (folder / name for name in ("peers.md", "peers.png", "speedups.png"))
        try:
            self.results = {name: ModelResult.from_json(item) for name, item in self._record.results.items()}
        except (KeyError, TypeError) as error:
            message = f"{str(self._record.path)!r} is no record of this benchmark ({error}); name another folder"
            raise InputError(message) from error

    def add(self, name: str, result: ModelResult) -> None:
        """Keep one more result, on disk, under a name."""
        self.results[name] = dataclasses.replace(result, name=name)
        self._record.add(name, dataclasses.asdict(self.results[name]))
        self.markdown.write_text(to_markdown(list(self.results.values()), self._record.settings))


def to_markdown(results: list[ModelResult], settings: dict[str, Any]) -> str:
    """A table of all models, and one for each."""
    names = list(dict.fromkeys(name for result in results for name in result.sides))
    about = f"Batch {settings['size']['batch']}, {settings['threads']} threads, {settings['rounds']} rounds"
    if any(":" in result.name for result in results):
        about += ", B names another batch and S the tokens of a text"
    if settings["neighbour"]:
        about += ", half of one core taken by another process"
    lines = [
        f"{about}, {settings['machine']['cpu']}. Milliseconds, minimum / median of the rounds; *ahead* is how many times",
        "as fast as the fastest peer, and as jax.jit, aspen is (the median of the rounds' quotients).",
        "",
        *table(["model", *names, "fastest peer", "ahead", "ahead of jax.jit"], [_summary(result, names) for result in results]),
        "",
        f"Geometric mean: {_mean([_ahead_of_best(result) for result in results])} times as fast as the fastest peer, "
        f"{_mean([result.ahead(JIT) for result in results])} times as fast as jax.jit.",
        *_speedups(results, names),
    ]
    for result in results:
        peak = f"{max(result.peak_flops) / 1e9:.0f} GFLOP/s" if result.peak_flops else "not measured"
        lines += [
            "",
            f"## {result.name}",
            "",
            f"{result.flops / 1e9:.3g} GFLOP; multiply-add peak of the same run {peak}; ONNX model {result.onnx}.",
            "",
            *table(
                ["", "min", "median", "spread", "of peak", "difference", "first answer", ""],
                [_detail(result, name) for name in result.sides],
            ),
        ]
    return "\n".join(lines) + "\n"


def _summary(result: ModelResult, names: list[str]) -> list[str]:
    cells = []
    for name in names:
        side = result.sides.get(name)
        timing = side.timing if side else None
        cells.append(f"{timing.minimum * 1e3:.3g} / {timing.median * 1e3:.3g}" if timing else side.state if side else "")
    return [result.name, *cells, result.best_peer() or "", _times(_ahead_of_best(result)), _times(result.ahead(JIT))]


def reference(results: Sequence[ModelResult]) -> str:
    """The side beside which the others are shown: TensorFlow, as in ASPEN's figure 6, where it was timed; else jax.jit."""
    return TENSORFLOW if any(not math.isnan(result.times_as_fast(TENSORFLOW, TENSORFLOW)) for result in results) else JIT


def _speedups(results: Sequence[ModelResult], names: list[str]) -> list[str]:
    other = reference(results)
    quotients = {name: [result.times_as_fast(name, other) for result in results] for name in names}
    rows = [[result.name, *(_times(quotients[name][row]) for name in names)] for row, result in enumerate(results)]
    means = ["geometric mean", *(_mean(quotients[name]) for name in names)]
    return ["", f"Times as fast as {other}:", "", *table(["model", *names], [*rows, means])]


def _detail(result: ModelResult, name: str) -> list[str]:
    side, timing = result.sides[name], result.sides[name].timing
    label = f"{name} {side.version}".strip()
    difference = "" if side.difference is None else f"{side.difference:.1e}"
    start = "" if side.start_s is None else duration(side.start_s)
    if timing is None:
        return [label, "", "", "", "", difference, start, f"{side.state}: {side.message}" if side.message else side.state]
    times = [duration(timing.minimum), duration(timing.median), f"{timing.spread:.0%}"]
    return [label, *times, f"{result.share_of_peak(name):.0%}", difference, start, side.message]


def _ahead_of_best(result: ModelResult) -> float:
    best = result.best_peer()
    return result.ahead(best) if best else math.nan


def _mean(quotients: list[float]) -> str:
    known = [quotient for quotient in quotients if not math.isnan(quotient)]
    return f"{statistics.geometric_mean(known):.2f}" if known else "unknown"


def _times(quotient: float) -> str:
    return "" if math.isnan(quotient) else f"{quotient:.2f}"
