"""Where predictions are close both sides are timed, if that is asked for, and later processes choose alike."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.errors import InputError
from aspen_jax.targets.cpu import choice, trial
from aspen_jax.targets.cpu.choice import Rates
from aspen_jax.targets.cpu.trial import Case, Times, Trials

pytestmark = pytest.mark.usefixtures("choosing", "of_its_own")

X = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), np.float32)
TILES_WIN, XLA_WINS = Times(2e6, 1e6), Times(1e6, 2e6)


@pytest.fixture
def of_its_own(monkeypatch, tmp_path):
    """A cache of its own, and predictions that are close: XLA by a little."""
    calls = {"calls": 1e6, "calls in a loop": 1e6}
    monkeypatch.setattr(choice, "rates", lambda: Rates(calls, {name: 1.1 * rate for name, rate in calls.items()}))
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ASPEN_TIME_CHOICES", "on")
    trial.forget()
    yield
    trial.forget()


@pytest.fixture
def timed(monkeypatch):
    """What a trial finds, first `TILES_WIN`, and a list of the cases that were timed."""

    class Found(list):
        times = TILES_WIN

    found = Found()

    def time(case, seconds):
        found.append(case)
        return found.times

    monkeypatch.setattr(trial, "_timed", time)
    return found


def squared(x):
    return jnp.tanh(x @ x) @ x


def looped(x):
    """A loop that XLA runs, since no tile kernel computes all of its body."""
    return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ x * 0.01 + lax.lgamma(2 + x * x)), x)


def turned(x):
    """A loop that is one op."""
    return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ x * 0.01), x)


def fresh(function):
    """The function as one that was never traced."""
    return lambda *arguments: function(*arguments)


def is_tiled(function, *arguments):
    return CUSTOM_CALL_TARGET in jax.jit(aspen(function)).lower(*arguments).as_text()


@pytest.mark.parametrize("function", [squared, looped, turned])
def test_what_is_timed_decides(function, timed):
    assert is_tiled(fresh(function), X)
    assert [case.is_body for case in timed] == [function is looped]
    timed.times = XLA_WINS
    assert is_tiled(fresh(function), X)  # once is enough
    assert len(timed) == 1
    assert not is_tiled(fresh(function), X[:48, :48])
    np.testing.assert_allclose(aspen(fresh(function))(X), jax.jit(function)(X), rtol=1e-3, atol=1e-3)


def test_the_reason_says_that_it_was_timed(timed):
    timed.times = XLA_WINS
    decorated = aspen(fresh(squared))
    jax.jit(decorated).lower(X)
    reasons = {item.reason for item in decorated.explain(X).fallbacks}
    assert reasons == {"tiles are not clearly faster: 2 ms when timed, and 1 ms in XLA"}
    decorated = aspen(fresh(looped))
    jax.jit(decorated).lower(X)
    (left,) = decorated.explain(X).fallbacks
    assert "bodies stay with XLA" in left.reason
    assert "tiles are not clearly faster: 2 ms when timed" in left.reason


@pytest.mark.parametrize("times", [TILES_WIN, XLA_WINS])
@pytest.mark.parametrize("function", [squared, looped])
def test_later_processes_compile_the_same_program(function, times, timed, monkeypatch):
    timed.times = times
    first = jax.jit(aspen(fresh(function))).lower(X).as_text()
    timed.times = XLA_WINS if times is TILES_WIN else TILES_WIN
    for word in ("on", "kept"):
        monkeypatch.setenv("ASPEN_TIME_CHOICES", word)
        trial.forget()
        assert jax.jit(aspen(fresh(function))).lower(X).as_text() == first
    assert len(timed) == 1
    monkeypatch.setenv("ASPEN_TIME_CHOICES", "off")
    assert not is_tiled(fresh(function), X)


def test_what_is_timed_by_default(timed, monkeypatch):
    monkeypatch.delenv("ASPEN_TIME_CHOICES")
    assert trial.by_environment() is Trials.ON
    aspen(fresh(squared)).explain(X)  # explaining is no compiling
    aspen(fresh(squared), strict=True).lower(X)
    assert not timed
    monkeypatch.setenv("ASPEN_TIME_CHOICES", "perhaps")
    with pytest.raises(InputError, match="ASPEN_TIME_CHOICES is 'perhaps'; write on, kept or off"):
        aspen(fresh(squared))(X)
    monkeypatch.setenv("ASPEN_TIME_CHOICES", "kept")
    assert not is_tiled(fresh(squared), X)
    assert not timed
    monkeypatch.delenv("ASPEN_TIME_CHOICES")
    assert is_tiled(fresh(squared), X)
    assert len(timed) == 1


def test_programs_that_others_compile_too_use_predictions(timed, monkeypatch):
    allowed = [jax.export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]
    jax.jit(aspen(fresh(squared))).lower(X)  # kept: tiles
    assert len(timed) == 1
    assert CUSTOM_CALL_TARGET not in jax.export.export(jax.jit(aspen(fresh(squared))), disabled_checks=allowed)(X).mlir_module()
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(X, jax.NamedSharding(mesh, jax.P("d")))
    assert not is_tiled(fresh(squared), spread)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert not is_tiled(fresh(squared), X)
    assert len(timed) == 1


def test_a_trial_that_fails_leaves_the_predictions(monkeypatch):
    def fail(case, seconds):
        raise RuntimeError("no device")

    monkeypatch.setattr(trial, "_timed", fail)
    assert not is_tiled(fresh(squared), X)
    np.testing.assert_allclose(aspen(fresh(squared))(X), jax.jit(squared)(X), rtol=1e-3, atol=1e-3)


def test_without_time_the_predictions_decide_from_then_on(timed, monkeypatch):
    rounds = trial._LEAST_ROUNDS
    monkeypatch.setattr(trial, "_LEAST_ROUNDS", 10**9)
    assert not is_tiled(fresh(squared), X)
    monkeypatch.setattr(trial, "_LEAST_ROUNDS", rounds)
    assert not is_tiled(fresh(squared), X)
    assert not timed


def test_more_time_takes_more_equations(timed, monkeypatch):
    monkeypatch.setattr(trial, "_EQUATIONS_OF_A_SECOND", 2 / trial.BUDGET_S)  # the function has three
    assert not is_tiled(fresh(squared), X)
    monkeypatch.setattr(trial, "BUDGET_S", 2 * trial.BUDGET_S)
    assert is_tiled(fresh(squared), X)


def test_only_close_predictions_of_long_parts_are_timed():
    def is_close(xla, tiles):
        return Case((), b"", (), list, list, (xla, tiles), False).is_close

    assert is_close(1e6, 1.9e6)
    assert is_close(1.9e6, 1e6)
    assert not is_close(1e6, 2.1e6)
    assert not is_close(2.1e6, 1e6)
    assert not is_close(1e5, 1e5)


@pytest.mark.parametrize("word", ["[[1, 2]]", '{"machine": 1}', "\0"])
def test_a_damaged_file_is_ignored(word, tmp_path, timed):
    jax.jit(aspen(fresh(squared))).lower(X)
    (file,) = tmp_path.glob("choices-*.json")
    kept = json.loads(file.read_text())["measured"]
    assert list(kept.values()) == [[2e6, 1e6]]
    file.write_text(word)
    trial.forget()
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert is_tiled(fresh(squared), X)
    assert len(timed) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_real_trials(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "BUDGET_S", 60.0)

    def function(x, y):
        return looped(squared(x)) + jnp.where(y.astype(bool), x, 0), x.sum()

    y = jnp.ones(X.shape, dtype)
    with jax.debug_nans(True), jax.transfer_guard("disallow"):
        decorated = jax.jit(aspen(function))(X, y)
    for ours, theirs in zip(decorated, jax.jit(function)(X, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-2)
    (file,) = tmp_path.glob("choices-*.json")
    kept = json.loads(file.read_text())["measured"]
    assert kept
    assert all(0 < seconds < 1e11 for pair in kept.values() for seconds in pair)


def test_tuning_times_both_sides(timed, monkeypatch):
    monkeypatch.setenv("ASPEN_TIME_CHOICES", "kept")
    function = aspen(fresh(squared))
    assert not function.explain(X).parts
    function.tune(X)
    assert timed
    assert len(function.explain(X).parts) == 1


_PROGRAM = """
import hashlib, jax, jax.numpy as jnp
from aspen_jax import aspen
from aspen_jax.targets.cpu import choice, trial
calls = {"calls": 1e6}
choice.rates = lambda: choice.Rates(calls, {"calls": 1.1e6})
print(hashlib.sha256(jax.jit(aspen(lambda x: jnp.tanh(x @ x))).lower(jnp.ones((300, 300))).as_text().encode()).hexdigest())
"""


def test_a_real_second_process_compiles_the_same_program(tmp_path):
    def digest(word):
        environment = {**os.environ, "ASPEN_TIME_CHOICES": word}
        return subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    first = digest("on")
    assert list(tmp_path.glob("choices-*.json"))
    assert digest("kept") == first
