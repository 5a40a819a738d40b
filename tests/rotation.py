"""What is swept is swept by turns: a run takes a quarter of it, the next day's run another.

    ASPEN_TEST_SWEEPS=all pytest     # all of it

A test that is marked `sweep` runs one in four of its cases, and at least one. Marked tests without parameters count as cases of
their file. A test that is decorated by `examples` draws a quarter of its examples, fresh ones in every run.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from typing import TypeVar

import hypothesis
import pytest

DAYS = 4
SWEEPS_ALL = os.environ.get("ASPEN_TEST_SWEEPS") == "all"

T = TypeVar("T")


def today() -> int:
    """The day on which the run began."""
    return int(os.environ["ASPEN_TEST_DAY"])


def todays(things: list[T]) -> list[T]:
    """Every fourth one, or one of fewer; over the days all of them."""
    days = min(DAYS, len(things))
    return things if SWEEPS_ALL or not things else things[today() % days :: days]


def examples(count: int) -> hypothesis.settings:
    """A decorator for a test of Hypothesis that wants `count` examples in `DAYS` days."""
    return hypothesis.settings(max_examples=count if SWEEPS_ALL else math.ceil(count / DAYS), deadline=None)


def other_days(items: list[pytest.Item]) -> set[pytest.Item]:
    """Cases of tests that are marked `sweep`, but today's."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            function, is_case, _ = item.nodeid.partition("[")
            cases[function if is_case else item.path.name].append(item)
    return {case for of in cases.values() for case in of} - {case for of in cases.values() for case in todays(of)}
