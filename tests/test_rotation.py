"""What a run sweeps and draws follows from the content of the checkout, and over many contents everything has its turn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import content, rotation
from tests.content import ROOT, generator

RNG = generator(__name__)
drawn: list[float] = []


class Item:
    """What is asked of pytest's."""

    path = Path("test_a.py")

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> str | None:
        return None if self.nodeid == "kept" else name


@pytest.fixture
def of_content(monkeypatch):
    monkeypatch.setattr(rotation, "SWEEPS_ALL", False)
    return lambda content: monkeypatch.setenv("ASPEN_TEST_CONTENT", content)


@pytest.mark.parametrize("count", range(8))
def test_everything_has_its_turn(count, of_content):
    seen = set()
    for k in range(64):
        of_content(f"{k:012x}")
        some = rotation.share(list(range(count)), "name")
        assert min(1, count) <= len(some) <= -(-count // min(rotation.TURNS, count or 1))
        assert some == rotation.share(list(range(count)), "name")
        seen |= set(some)
    assert seen == set(range(count))


def test_cases_take_turns_and_the_rest_stays(of_content, monkeypatch):
    names = ("swept[0]", "swept[1]", "swept[2]", "kept", "long", "slow")
    items = [Item(name) for name in names]

    def run():
        left_out = rotation.left_out(items)
        return {item.nodeid for item in items if item not in left_out}

    seen = set()
    for k in range(64):
        of_content(f"{k:012x}")
        names_run = run()
        assert "kept" in names_run
        assert len(names_run) == 3
        assert len(names_run & {"long", "slow"}) == 1
        seen |= names_run
    assert seen == set(names)
    monkeypatch.setattr(rotation, "SWEEPS_ALL", True)
    assert len(run()) == len(items)


def test_fewer_examples_are_drawn(of_content, monkeypatch):
    assert rotation.examples(40).max_examples == 10
    monkeypatch.setattr(rotation, "SWEEPS_ALL", True)
    assert rotation.examples(40).max_examples == 40


def test_the_content_is_that_of_files(tmp_path, monkeypatch):
    monkeypatch.delenv("ASPEN_TEST_CONTENT")
    monkeypatch.setattr(content, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    found = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("a.py", "1"), ("a.o", "1")):
        (tmp_path / "tests" / name).write_text(text)
        content._hash.cache_clear()
        found.append(content.content())
    content._hash.cache_clear()
    assert len(set(found[:4])) == 4
    assert found[4] == found[3]


@pytest.mark.parametrize("_", range(2))
def test_each_test_draws_what_its_name_gives(_, request):
    ours = np.random.default_rng(content.seed_of(request.node.nodeid)).random()
    assert RNG.random() == ours
    drawn.append(ours)
    assert len(set(drawn)) == len(drawn)


def test_a_run_prints_its_content_and_a_failure_how_to_draw_it_again(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert False\n")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"]
    environment = {**os.environ, "ASPEN_TEST_CONTENT": "0123456789ab", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert said.count("content 0123456789ab") == 1, said
    assert said.count("ASPEN_TEST_CONTENT=0123456789ab draws the same again") == 1, said


def test_nothing_is_drawn_by_date_or_without_a_seed():
    """Neither the day nor the clock nor the system's random numbers choose what is tested."""
    unseeded = (
        r"default_rng\(\)|= int\.from_bytes\(os\.urandom|= time\.time_ns|^\s*import datetime|^import random$"
        r"|RandomState\(\)|\bnp\.random\.(?!default_rng)[a-z]|std::random_devic[e]"
    )
    sources = [path for kind in ("*.py", "*.cc", "*.h") for path in (ROOT / "tests").rglob(kind)]
    sources.remove(ROOT / "tests/content.py")  # which seeds them
    for path in (*sources, ROOT / ".ci/run", ROOT / "tools/random_programs.py"):
        assert not re.search(unseeded, path.read_text(), re.MULTILINE), path.name
