"""What is swept is swept by turns: a run takes a quarter of it, chosen by the content of the checkout (`content.py`).

    ASPEN_TEST_SWEEPS=all pytest     # all of it

A test that is marked `sweep` runs one in four of its cases, and at least one. Marked tests without parameters count as cases of
their file. A test that is decorated by `examples` draws a quarter of its examples.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import hypothesis
import pytest

from tests.content import seed_of

TURNS = 4
SWEEPS_ALL = os.environ.get("ASPEN_TEST_SWEEPS") == "all"

T = TypeVar("T")


def share(things: Sequence[T], name: str, turns: int = TURNS) -> Sequence[T]:
    """One in `turns` of them, or one of fewer; which ones follows from the content and the name."""
    turns = min(turns, len(things))
    return things if SWEEPS_ALL or not things else things[seed_of(name) % turns :: turns]


def examples(count: int) -> hypothesis.settings:
    """A decorator for a test of Hypothesis that wants `count` examples in `TURNS` turns."""
    return hypothesis.settings(max_examples=count if SWEEPS_ALL else math.ceil(count / TURNS), deadline=None)


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Cases of tests that are marked `sweep` whose turn it is not."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            function, is_case, _ = item.nodeid.partition("[")
            cases[function if is_case else item.path.name].append(item)
    return {case for of in cases.values() for case in of} - {case for name, of in cases.items() for case in share(of, name)}
