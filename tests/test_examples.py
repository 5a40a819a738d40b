"""The programs in examples/ run, show something and notice wrong results; a page names each of them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))

# Runs an example, but every decorated function and every graph is off by one.
WRONG = """
import runpy, sys
import jax
from aspen_jax import TileGraph
from aspen_jax.api.function import AspenFunction

def off_by_one(method):
    return lambda *args, **kwargs: jax.tree.map(lambda leaf: leaf + 1, method(*args, **kwargs))

AspenFunction._call = off_by_one(AspenFunction._call)
TileGraph.run = off_by_one(TileGraph.run)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Python as a user starts it, in an empty folder: XLA's own flags, and what XLA does as fast is left to it."""
    ours = {"XLA_FLAGS", "ASPEN_DISABLE_PASSES"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)


@each_program
def test_an_example_runs_and_prints_a_few_lines(program, tmp_path):
    result = run([str(program)], tmp_path)
    assert result.returncode == 0, result.stderr
    assert 1 <= len(result.stdout.splitlines()) <= 50
    assert list(tmp_path.iterdir()) == []


@each_program
def test_an_example_notices_wrong_results(program, tmp_path):
    result = run(["-c", WRONG, str(program)], tmp_path)
    assert result.returncode != 0
    assert "AssertionError" in result.stderr


@each_program
def test_an_example_is_short_and_says_what_it_shows(program):
    text = program.read_text()
    assert len(text.splitlines()) <= 50
    assert ast.get_docstring(ast.parse(text))


def test_the_page_has_one_line_for_each_example():
    named = re.findall(r"^\| \[`\w+\.py`\]\((\w+\.py)\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert len(named) >= 10
    assert sorted(named) == [program.name for program in PROGRAMS]
