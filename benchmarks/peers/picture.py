"""A record as pictures: times beside aspen's, and speed-ups as in ASPEN's figure 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aspen_jax.errors import AspenError
from benchmarks.peers.record import ModelResult, reference
from benchmarks.peers.sides import ASPEN, SIDES

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] - optional


def draw_times(results: Sequence[ModelResult], path: Path) -> None:
    """Draw times beside aspen's, and shares of the multiply-add peak: each model a row, each side a dot in it.

    Raises:
        AspenError: matplotlib is missing.
    """
    figure = _figure(12, 2.2 + 0.32 * len(results))
    beside, share = figure.subplots(1, 2, sharey=True)
    rows = range(len(results))
    for index, name in enumerate(SIDES):
        times, shares = [], []
        for row, result in zip(rows, results, strict=True):
            timing = result.sides[name].timing if name in result.sides else None
            ours = result.sides[ASPEN].timing if ASPEN in result.sides else None
            if timing:
                shares.append((result.share_of_peak(name), row))
            if timing and ours:
                times.append((timing.minimum / ours.minimum, row))
        style = {"color": f"C{index}", "marker": "D" if name == ASPEN else "o", "zorder": 3 if name == ASPEN else 2}
        if times:
            beside.scatter(*zip(*times, strict=True), **style)
        if shares:
            share.scatter(*zip(*shares, strict=True), label=name, **style)
    beside.set_xscale("log")
    beside.axvline(1, color="grey", linewidth=0.8)
    beside.set_xlabel("time as a multiple of aspen's (minimum of the rounds)")
    share.set_xlim(left=0)
    share.set_xlabel("share of the multiply-add peak of the same run")
    beside.set_yticks(list(rows), [result.name for result in results])
    beside.invert_yaxis()
    for axes in (beside, share):
        axes.grid(axis="both", alpha=0.3)
    if share.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper center", ncols=len(SIDES), frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def draw_speedups(results: Sequence[ModelResult], path: Path) -> None:
    """Draw how many times as fast as the reference each side is: each model a group of bars, with milliseconds on each.

    Raises:
        AspenError: matplotlib is missing.
    """
    other = reference(results)
    names = [name for name in SIDES if any(name in result.sides and result.sides[name].timing for result in results)]
    figure = _figure(2 + 0.2 * len(results) * (len(names) + 1), 5)
    axes = figure.subplots()
    for index, name in enumerate(names):
        for row, result in enumerate(results):
            quotient, timing = result.times_as_fast(name, other), result.sides[name].timing
            if timing is None or math.isnan(quotient):
                continue
            place = row + (index + 1) / (len(names) + 1) - 0.5
            axes.bar(place, quotient, 1 / (len(names) + 1), color=f"C{[*SIDES].index(name)}", label=name)
            axes.annotate(
                f"{timing.median * 1e3:.3g} ms",
                (place, quotient),
                (0, 2),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
            )
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.margins(y=0.2)
    axes.set_xticks(range(len(results)), [result.name for result in results])
    axes.set_ylabel(f"times as fast as {other} (medians)")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise AspenError(f"there is no picture, because matplotlib is missing ({error}); pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")
