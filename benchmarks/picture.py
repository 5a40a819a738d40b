"""Curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aspen_jax.errors import InputError

Points = Sequence[tuple[float, float]]


def save_curves(path: Path, title: str, x: str, y: str, curves: Mapping[str, Points], *, log_x: bool = False) -> None:
    """Draw a line for each of `curves` into a PNG, PDF or SVG file.

    Args:
        path: its ending says what it is.
        title: above the picture.
        x: name of the horizontal axis, with its unit.
        y: name of the vertical one.
        curves: points (x, y) by name.
        log_x: powers of two along the horizontal axis.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("pictures need matplotlib; run pip install matplotlib, or leave --picture out") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if log_x:
        axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, None))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be written as a picture: {error}") from error
