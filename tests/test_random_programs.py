"""Random functions of thirty steps mean decorated what they mean undecorated, step by step and as a whole."""

from __future__ import annotations

import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from tests.content import ROOT, first_seed, sources
from tests.random_checks import Tally, faults, faults_of_steps, faults_of_whole
from tests.random_steps import Step, Written, written

COUNT = 60


@pytest.mark.parametrize("number", range(COUNT))
def test_random_programs(number, request):
    """Half of them in the default mode; tools/random_programs.py tries more of either."""
    is_forced = number % 4 > 1
    if not is_forced:
        request.getfixturevalue("choosing")
    seed = first_seed() + number
    tally = Tally()
    found = list(map(str, faults(seed, is_forced=is_forced, tally=tally)))
    assert not found, f"python tools/random_programs.py --count 1 --seed {seed}{'' if is_forced else ' --mode default'}"
    assert tally.calls or not is_forced


def test_the_same_seed_writes_the_same_function():
    first, again, other = written(3), written(3), written(4)
    assert first.text() == again.text() != other.text()
    for ours, theirs in zip(first.arguments, again.arguments, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_wrong_step_is_found(monkeypatch, wrong):
    x = np.linspace(-1, 1, 12, dtype=np.float32)
    steps = (
        Step("sine", (0,), jnp.sin),
        Step("narrow", (1,), lambda a: a.astype(jnp.bfloat16)),
        Step("largest", (1,), lambda a: jnp.argmax(a).astype(np.int32)),
        Step("doubled", (1,), lambda a: a * 2),
    )

    def damaged(function):
        def call(*arguments):
            values = function(*arguments)
            values[wrong] = values[wrong] + (1 if wrong == 2 else 0.25)
            return values

        return call

    function = Written((x,), steps)
    assert not list(faults_of_steps(function))
    monkeypatch.setattr("tests.random_checks.aspen", damaged)
    assert wrong in {fault.result for fault in faults_of_steps(function)}


def test_a_wrong_result_is_found():
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    function = lambda x: [x * 2, (x > 0.01)]  # noqa: E731
    right = [x * 2, x > 0.01]
    assert not list(faults_of_whole("whole", function, [x], right))
    assert [fault.result for fault in faults_of_whole("whole", function, [x], [x * 2.01, ~right[1]])] == [0, 1]


def test_the_content_is_that_of_the_files_in_git():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("the checkout is no repository")
    ours = {path.relative_to(ROOT).as_posix() for path in sources()}
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    folders = {name.partition("/")[0] for name in ours}
    assert len(ours & tracked) > 500
    missed = {name for name in tracked - ours if name.partition("/")[0] in folders and name.endswith((".py", ".cc", ".h"))}
    assert not missed
