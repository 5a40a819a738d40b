"""Results come first: nothing is timed where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aspen_jax.errors import AspenError
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.difference import largest_difference


class Disagreement(AspenError):
    """Two sides give different results."""


def check_agreement(name: str, calls: Mapping[str, Callable[[], Any]], reference: str) -> None:
    """Call all sides and compare what they give with one of them.

    Raises:
        Disagreement: one differs.
    """
    expected = calls[reference]()
    for side, call in calls.items():
        difference = largest_difference(call(), expected)
        if difference > TOLERANCE:
            raise Disagreement(f"{name}: {side} differs by {difference:.1e} of the largest output, so nothing was timed")
