"""Random functions of thirty steps mean decorated what they mean undecorated, step by step and as a whole."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import aspen
from benchmarks.in_float64 import in_float64
from tests.content import ROOT, sources
from tests.random_checks import Tally, faults, faults_of_steps, faults_of_whole
from tests.random_steps import Step, Written, written

COUNT = 60
# The same in each run: a legal difference that the checker does not know, or an abort of XLA, stops nobody's other work. What the
# tool draws follows from the sources.
FIRST = 50_000_000


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(COUNT))
def test_random_programs(number, request):
    """Half of them in the default mode; tools/random_programs.py tries more of either."""
    is_forced = number % 4 > 1
    if not is_forced:
        request.getfixturevalue("choosing")
    seed = FIRST + number
    tally = Tally()
    found = list(map(str, faults(seed, is_forced=is_forced, tally=tally)))
    assert not found, f"python tools/random_programs.py --count 1 --seed {seed}{'' if is_forced else ' --mode default'}"
    assert tally.calls or not is_forced


def test_the_same_seed_writes_the_same_function():
    first, again, other = written(3), written(3), written(4)
    assert first.text() == again.text() != other.text()
    for ours, theirs in zip(first.arguments, again.arguments, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_reference_keeps_nan_in_maxima():
    x = np.random.default_rng(0).standard_normal((8, 33, 16)).astype(np.float32)
    x[:, ::7] = np.nan
    for reduce in (jnp.max, jnp.min):
        assert np.isnan(in_float64(lambda x: reduce(x, (0, 1)), x)).all()  # noqa: B023
        assert np.isnan(in_float64(lambda x: reduce(x), x))  # noqa: B023


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


def _values_are(monkeypatch, change):
    """Makes `aspen` give the values that JAX gives, changed."""
    monkeypatch.setattr("tests.random_checks.aspen", lambda function: lambda *arguments: change(function(*arguments)))


@pytest.mark.parametrize(("error", "is_right"), [(0.0, True), (2e-4, True), (0.02, False)])
def test_what_was_narrow_is_read_with_either_number_of_digits(monkeypatch, error, is_right):
    """A kernel stores all digits of a widened float; the next reads the narrow one in its place."""
    x = np.linspace(0.1, 1, 12, dtype=np.float16)
    steps = (
        Step("sine", (0,), jnp.sin),
        Step("widened", (1,), lambda a: a.astype(jnp.float32)),
        Step("doubled", (2,), lambda a: a * 2),
    )
    _values_are(monkeypatch, lambda values: [*values[:2], values[2] * (1 + error)])
    assert [fault.result for fault in faults_of_steps(Written((x,), steps))] == ([] if is_right else [2])


def test_digits_of_what_was_never_narrow_are_judged(monkeypatch):
    x = np.linspace(0.1, 1, 12, dtype=np.float32)
    steps = (Step("sine", (0,), jnp.sin), Step("doubled", (1,), lambda a: a * 2))
    _values_are(monkeypatch, lambda values: [values[0], values[1] * (1 + 2e-4)])
    assert [fault.result for fault in faults_of_steps(Written((x,), steps))] == [1]


@pytest.mark.parametrize("wrong", [None, 1, 2])
def test_what_leaves_the_range_of_a_narrow_float_may_be_kept(monkeypatch, wrong):
    """The square overflows at the first element and vanishes at the second. Kept, its tangent and logarithm are finite."""
    x = np.asarray([1e3, 1e-5, 1, 2], np.float16)
    steps = (Step("square", (0,), jnp.square), Step("tan", (1,), jnp.tan), Step("log", (1,), jnp.log))

    def kept(values):
        square = x.astype(np.float32) ** 2
        tan, log = np.tan(square).astype(np.float16), np.log(square).astype(np.float16)
        for number, array in ((1, tan), (2, log)):
            if wrong == number:
                array[2] += 0.25
        return [values[0], tan, log]

    _values_are(monkeypatch, kept)
    assert [fault.result for fault in faults_of_steps(Written((x,), steps))] == ([] if wrong is None else [wrong])


@pytest.mark.parametrize("is_by_operation", [False, True])
def test_a_gradient_that_runs_by_operation_multiplies_with_masks(is_by_operation):
    """The minimum of NaN is the loss nowhere, but the mask of its equals is empty: 0/0 times 0. Under `jax.jit` that is 0."""
    x = np.asarray([[np.nan, 1], [3, 2]], np.float32)

    def loss(x):
        least = jnp.min(x, 1)
        return jnp.where(jnp.isfinite(least), least, 0).sum()

    function = lambda x: [jax.grad(loss)(x)]  # noqa: E731
    ours = jax.grad(aspen(loss))(x)
    assert np.isnan(ours).any()
    assert not np.isnan(jax.jit(jax.grad(aspen(loss)))(x)).any()

    def found(gradient):
        return list(faults_of_whole("gradient", function, [x], [gradient], is_by_operation=is_by_operation))

    assert bool(found(ours)) == (not is_by_operation)
    assert not found(jax.jit(function)(x)[0])
    assert found(ours.at[1, 0].set(1))
    assert found(ours.at[1, 1].set(jnp.nan))


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
