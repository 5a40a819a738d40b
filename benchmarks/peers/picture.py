"""A record as a picture: each model a row, each side a dot in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aspen_jax.errors import AspenError
from benchmarks.peers.record import ModelResult
from benchmarks.peers.sides import ASPEN, SIDES


def draw_picture(results: Sequence[ModelResult], path: Path) -> None:
    """Draw times beside aspen's, and shares of the multiply-add peak.

    Raises:
        AspenError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise AspenError(f"there is no picture, because matplotlib is missing ({error}); pip install matplotlib") from error
    figure = Figure(figsize=(12, 2.2 + 0.32 * len(results)), layout="constrained")
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
