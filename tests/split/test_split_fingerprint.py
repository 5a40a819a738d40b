"""Two functions that can give different results have different fingerprints, also by what callbacks hold."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from aspen_jax import InputError
from aspen_jax.split import Halves
from tests.split import split_functions
from tests.split.split_functions import calling, halved

X = np.float32(1)
ROOT = Path(__file__).parents[2]


def of(fun, *args):
    return Halves(fun, args or (X,)).fingerprint


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return np.asarray(x) * self.factor

    def scaled(self, x):
        return np.asarray(x) * self.factor


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    values: np.ndarray

    def __call__(self, x):
        return self.values[0] * x


def closing_over(factor):
    return lambda x: np.asarray(x) * np.float32(factor)


def by_default(factor):
    def scaled(x, *, by=factor):
        return x * by

    return scaled


def through_a_helper(factor):
    inner = closing_over(factor)
    return lambda x: inner(x)


def long_table(factor):
    return Table(np.where(np.arange(5000) == 2500, np.float32(factor), 0))  # its repr leaves the middle out


def recursive(factor):
    def count(x):
        return x if x > factor else count(x + factor)

    return count


@pytest.mark.parametrize(
    "make",
    [
        closing_over,
        by_default,
        through_a_helper,
        Scaler,
        lambda factor: Scaler(factor).scaled,
        lambda factor: functools.partial(np.multiply, factor),
        long_table,
        lambda factor: {2: np.sin, 3: np.cos}[factor],
        lambda factor: functools.lru_cache(closing_over(factor)),
        lambda factor: jax.jit(closing_over(factor)),
        lambda factor: np.random.default_rng(factor).normal,
        lambda factor: [closing_over(factor)][0],
        recursive,
    ],
)
def test_callbacks_that_differ_in_what_they_hold_are_told_apart(make):
    two, again, three = (of(calling(make(factor))) for factor in (2, 2, 3))
    assert two == again != three


@pytest.mark.parametrize(
    "call",
    [
        lambda f: lambda x: (jax.debug.callback(f, x), x * 2)[1],
        lambda f: lambda x: io_callback(f, jax.ShapeDtypeStruct((), np.float32), x),
        lambda f: lambda x: jax.lax.cond(x > 0, calling(f), lambda x: x, x),
    ],
)
def test_all_kinds_of_callbacks_count(call):
    two, again, three = (of(call(closing_over(factor))) for factor in (2, 2, 3))
    assert two == again != three


def test_globals_that_a_callback_reads_count(monkeypatch):
    before = of(calling(halved))
    assert of(calling(halved)) == before
    monkeypatch.setattr(split_functions, "HALF", np.float32(0.25))
    assert of(calling(halved)) != before
    monkeypatch.undo()
    through_module = calling(lambda x: split_functions.halved(x))
    before = of(through_module)
    monkeypatch.setattr(split_functions, "HALF", np.float32(0.25))
    assert of(through_module) != before


def test_static_arguments_count_by_what_they_hold():
    class Mode:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value == other.value

        def __hash__(self):
            return hash(self.value)

    def fun(x, mode):
        return x * 2 if mode.value else x

    assert of(fun, X, Mode(1)) == of(fun, X, Mode(1)) != of(fun, X, Mode(2))


def test_rules_for_derivatives_do_not_count():
    def squared(slope):
        fun = jax.custom_jvp(lambda x: x * x)
        fun.defjvp(lambda primals, tangents: (primals[0] ** 2, slope * tangents[0]))
        return fun

    assert of(squared(2.0)) == of(squared(3.0))  # no half runs them


def test_what_cannot_be_told_is_refused_by_name(tmp_path):
    lock = threading.Lock()
    numbers = (number for number in range(3))
    with (tmp_path / "file").open("w") as file:
        for held, name in ((lock, "lock"), (numbers, "generator"), (file, "TextIOWrapper"), (split_functions, "module")):
            with pytest.raises(InputError, match=f"held is of type .*{name}"):
                of(calling(holding(held)))


def holding(held):
    return lambda x: x if held else -x


def test_a_module_that_is_imported_in_the_call_is_refused():
    def late(x):
        from tests import split_functions as found

        return found.halved(x)

    with pytest.raises(InputError, match="import tests"):
        of(calling(late))


def test_other_processes_get_the_same(tmp_path):
    code = (
        "from tests.split.test_split_fingerprint import *\n"
        "makes = closing_over, by_default, Scaler, long_table, recursive, lambda _: np.sin, lambda _: halved\n"
        "calls = [calling(make(2)) for make in makes] + [lambda x: (jax.debug.print('{}', x, ordered=True), x)[1]]\n"
        "print([of(call).hex() for call in calls], of(split_functions.net, split_functions.net_args()).hex())\n"
    )
    found = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([*sys.path[1:], str(ROOT)])}
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_weights_count_where_the_function_marks_them():
    from aspen_jax import aspen

    f = aspen(lambda w, x: x * w, weights=0)
    assert of(f, jnp.ones(3), X) == of(f, np.ones(3, np.float32), X) != of(f, jnp.zeros(3), X)
