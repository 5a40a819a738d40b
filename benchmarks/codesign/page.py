"""What the trainings and times say, as Markdown and as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from aspen_jax.cost.timing import speedup
from aspen_jax.report.comparison import PLAIN, TILED
from benchmarks.codesign.design import BASE
from benchmarks.codesign.speed import Speed
from benchmarks.markdown import table
from benchmarks.picture import save_points

Trained = Mapping[str, Sequence[Mapping[str, Any]]]


def accuracy_table(trained: Trained, about: str) -> list[str]:
    """Accuracies in percent of the folded networks, beside the base's of the same seeds."""
    seeds = len(next(iter(trained.values())))
    rows = []
    for name, results in trained.items():
        mean, deviation = _accuracy(results)
        difference = _beside(results, trained[BASE]) if name != BASE and BASE in trained else ""
        folding = max(one["difference"] for one in results)
        changed = sum(one["accuracy"] != one["folded_accuracy"] for one in results)
        rows.append([name, f"{mean:.2f}", f"{deviation:.2f}", difference, f"{folding:.0e}", str(changed)])
    header = [
        "design",
        "accuracy, %",
        "standard deviation",
        f"more than {BASE}, points",
        "folding differs by",
        "changes accuracies",
    ]
    return [f"Accuracy: {about}, {seeds} seeds.", "", *table(header, rows)]


def speed_table(timed: Mapping[str, Speed], title: str) -> list[str]:
    """Images a second in the median round; quotients are medians of the rounds'."""
    rows = []
    for name, speed in timed.items():
        beside = [
            f"{speedup(timed[BASE].timings[side], speed.timings[side]):.2f}" if BASE in timed else "" for side in (TILED, PLAIN)
        ]
        rates = [f"{rate:.{0 if rate >= 100 else 1}f}" for rate in map(speed.rate, (TILED, PLAIN))]
        ahead = f"{speedup(speed.timings[PLAIN], speed.timings[TILED]):.2f}"
        rows.append([name, f"{speed.parameters / 1e6:.3g}", rates[0], beside[0], rates[1], beside[1], ahead])
    sides = [cell for side in (TILED, PLAIN) for cell in (f"{side}, images/s", f"of {BASE}")]
    return ["", f"Speed: {title}.", "", *table(["design", "parameters, M", *sides, f"{TILED} ahead of {PLAIN}"], rows)]


def draw(path: Path, trained: Trained, timed: Mapping[str, Speed]) -> None:
    """Accuracy over speed, with standard deviations.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    points = {name: (timed[name].rate(TILED), *_accuracy(results)) for name, results in trained.items()}
    save_points(path, "Mean and standard deviation over seeds", f"images a second by {TILED}", "accuracy, %", points)


def _accuracy(results: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Mean and standard deviation in percent."""
    values = [100 * one["folded_accuracy"] for one in results]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def _beside(results: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> str:
    """The mean difference of the same seeds, and its 95% interval by Student's distribution."""
    values = [100 * (one["folded_accuracy"] - other["folded_accuracy"]) for one, other in zip(results, base, strict=True)]
    mean = f"{statistics.mean(values):+.2f}"
    if len(values) < 2:
        return mean
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return f"{mean} ± {quantile * statistics.stdev(values) / math.sqrt(len(values)):.2f}"
