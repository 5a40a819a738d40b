"""What is swept by turns is swept whole in as many days as there are turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rotation


class Item:
    """What is asked of pytest's."""

    path = Path("test_a.py")

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> str | None:
        return None if self.nodeid == "kept" else name


@pytest.fixture
def on_day(monkeypatch):
    monkeypatch.setattr(rotation, "SWEEPS_ALL", False)
    return lambda day: monkeypatch.setenv("ASPEN_TEST_DAY", str(day))


@pytest.mark.parametrize("count", range(8))
def test_everything_has_its_day(count, on_day):
    seen = []
    for day in range(739_000, 739_000 + min(rotation.DAYS, count)):
        on_day(day)
        some = rotation.todays(list(range(count)))
        assert 1 <= len(some) <= -(-count // min(rotation.DAYS, count))
        seen += some
    assert sorted(seen) == list(range(count))


def test_cases_take_turns_and_the_rest_stays(on_day, monkeypatch):
    names = ("swept[0]", "swept[1]", "swept[2]", "kept", "long", "slow")
    items = [Item(name) for name in names]

    def run():
        left_out = rotation.other_days(items)
        return {item.nodeid for item in items if item not in left_out}

    on_day(0)
    assert run() == {"swept[0]", "kept", "long"}
    on_day(1)
    assert run() == {"swept[1]", "kept", "slow"}
    on_day(2)
    assert run() == {"swept[2]", "kept", "long"}
    monkeypatch.setattr(rotation, "SWEEPS_ALL", True)
    assert len(run()) == len(items)


def test_fewer_examples_are_drawn(on_day, monkeypatch):
    assert rotation.examples(40).max_examples == 10
    monkeypatch.setattr(rotation, "SWEEPS_ALL", True)
    assert rotation.examples(40).max_examples == 40
