"""DynO's profiler and scheduler: predicted beside measured times of heads, and how long a choice takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.cost.timing import Timing, interleaved
from aspen_jax.split.cut import cut
from aspen_jax.split.measure import measure_times
from aspen_jax.split.schedule import METRICS, Constraint, Metrics, Target, choose

CUTS, BITS = 500, 16
_WHOLE = "whole"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Seconds before a cut.

    Attributes:
        cut: its number.
        predicted: its share in one timeline of the whole function, of that function's fastest call.
        measured: of the head alone, the fastest call.
    """

    cut: int
    predicted: float
    measured: float


def predictions(fun: Callable[..., Any], args: tuple[Any, ...], cuts: int, rounds: int) -> list[Prediction]:
    """Heads at some cuts, spread over the predicted time, each timed in turns with the others and with the whole function."""
    before = measure_times(fun, *args, rounds=rounds).before
    chosen = spread(before, cuts)
    heads = {str(k): cut(fun, k, *args)[0] for k in chosen}
    calls = {name: functools.partial(_wait, head, args) for name, head in ({_WHOLE: aspen(fun)} | heads).items()}
    found = interleaved(calls, rounds)
    share = before / before[-1]
    return [Prediction(k, float(share[k] * found[_WHOLE].minimum), found[str(k)].minimum) for k in chosen]


def spread(before: np.ndarray, count: int) -> list[int]:
    """Choose at most `count` cuts, spread over the seconds `before` them, float64 [cuts]; and the last one."""
    wanted = np.linspace(0, before[-1], count + 2)[1:-1]
    return sorted({int(np.searchsorted(before, seconds)) for seconds in wanted} | {len(before) - 1})


def relative_errors(items: Sequence[Prediction]) -> np.ndarray:
    """How far each prediction is off, as a share of what was measured, float64 [items]."""
    return np.array([abs(item.predicted - item.measured) / item.measured for item in items])


def _wait(fun: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return jax.block_until_ready(fun(*args))


def seconds_to_choose(rounds: int) -> Timing:
    """A choice among 500 cuts x 16 numbers of bits, by three constraints and three targets."""
    random = np.random.default_rng(0)
    metrics = Metrics(np.arange(CUTS), np.arange(1, BITS + 1), {name: random.random((CUTS, BITS)) for name in METRICS})
    constraints = [Constraint("latency", "<=", 0.9), Constraint("accuracy", ">=", 0.2), Constraint("server_cost", "<=", 0.9)]
    targets = [Target("device_cost", 0.5, 0.2), Target("throughput", "max", 0.1), Target("latency", "min")]
    return interleaved({"choose": lambda: choose(metrics, constraints, targets)}, rounds)["choose"]
