"""What the trainings and times say, as tables and as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from aspen_jax.cost.timing import speedup
from aspen_jax.report.comparison import PLAIN, TILED
from benchmarks.benchmark import samples
from benchmarks.codesign.design import BASE
from benchmarks.codesign.speed import Speed
from benchmarks.picture import save_points
from benchmarks.table import Table

Trained = Mapping[str, Sequence[Mapping[str, Any]]]


def accuracy_table(trained: Trained, about: str) -> Table:
    """Accuracies in percent of the folded networks, beside the base's of the same seeds."""
    seeds = len(next(iter(trained.values())))
    forms = {"accuracy, %": ".2f", "standard deviation": ".2f", f"more than {BASE}, points": ""}
    table = Table(
        f"Accuracy: {about}, {seeds} seeds.", {"design": "", **forms, "folding differs by": ".0e", "changes accuracies": "d"}
    )
    for name, results in trained.items():
        difference = _beside(results, trained[BASE]) if name != BASE and BASE in trained else ""
        folding = max(one["difference"] for one in results)
        changed = sum(one["accuracy"] != one["folded_accuracy"] for one in results)
        table.add(name, *_accuracy(results), difference, folding, changed, trainings=list(results))
    return table


def speed_table(timed: Mapping[str, Speed], title: str) -> Table:
    """Images a second in the median round; quotients are medians of the rounds'."""
    sides = {
        column: form for side in (TILED, PLAIN) for column, form in ((f"{side}, images/s", ".1f"), (f"{side}, of {BASE}", ".2f"))
    }
    table = Table(f"Speed: {title}.", {"design": "", "parameters, M": ".3g", **sides, f"{TILED} ahead of {PLAIN}": ".2f"})
    for name, speed in timed.items():
        cells = []
        for side in (TILED, PLAIN):
            beside = speedup(timed[BASE].timings[side], speed.timings[side]) if BASE in timed else None
            cells += [speed.rate(side), beside]
        ahead = speedup(speed.timings[PLAIN], speed.timings[TILED])
        table.add(name, speed.parameters / 1e6, *cells, ahead, **samples(speed.timings))
    return table


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
