"""Curves and bars as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aspen_jax.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]


def save_curves(
    path: Path, title: str, x: str, y: str, curves: Mapping[str, Points], *, log_x: bool = False, log_y: bool = False
) -> None:
    """Draw a line for each of `curves` into a PNG, PDF or SVG file.

    Args:
        path: its ending says what it is.
        title: above the picture.
        x: name of the horizontal axis, with its unit.
        y: name of the vertical one.
        curves: points (x, y) by name.
        log_x: powers of two along the horizontal axis.
        log_y: likewise along the vertical one, which otherwise begins at 0.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    figure = _figure()
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if log_x:
        axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log", base=2)
    else:
        axes.set_ylim(0, None)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def save_bars(path: Path, title: str, y: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a group of bars for each of `groups` into a PNG, PDF or SVG file, the same names in each.

    Args:
        path: its ending says what it is.
        title: above the picture.
        y: name of the vertical axis, with its unit.
        groups: heights by name, by group.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    figure = _figure()
    axes = figure.subplots()
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [place + (i - (len(names) - 1) / 2) * width for place in range(len(groups))]
        axes.bar(places, [bars[name] for bars in groups.values()], width, label=name)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(title=title, ylabel=y)
    axes.legend()
    _save(figure, path)


def save_points(path: Path, title: str, x: str, y: str, points: Mapping[str, tuple[float, float, float]]) -> None:
    """Draw named points into a PNG, PDF or SVG file.

    Args:
        path: its ending says what it is.
        title: above the picture.
        x: name of the horizontal axis, with its unit.
        y: name of the vertical one.
        points: x, y and how far the bar around y reaches, by name.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    figure = _figure()
    axes = figure.subplots()
    for name, (across, up, bar) in points.items():
        axes.errorbar(across, up, bar, marker="o", capsize=3, linestyle="none", label=name)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("pictures need matplotlib; run pip install matplotlib, or leave --picture out") from error
    return Figure(figsize=(7, 4.5), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be written as a picture: {error}") from error
