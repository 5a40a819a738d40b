"""The choice of cut and bits equals a search through all of them, one by one."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from aspen_jax.errors import InputError
from aspen_jax.split.schedule import METRICS, Constraint, Metrics, Replanner, Target, choose, has_moved
from tests.content import generator

RNG = generator(__name__)


def random_metrics(cuts: int, bits: int) -> Metrics:
    """Few different values, so that there are ties."""
    values = {name: RNG.integers(0, 8, (cuts, bits)) / 8 for name in METRICS}
    values["latency"] = np.where(RNG.random((cuts, bits)) < 0.05, np.inf, values["latency"])
    return Metrics(np.sort(RNG.choice(99, cuts, replace=False)), np.arange(1, bits + 1), values)


def random_wishes() -> tuple[list[Constraint], list[Target]]:
    ops = ["<=", ">="]
    constraints = [
        Constraint(str(name), ops[RNG.integers(2)], float(RNG.integers(0, 9) / 8))
        for name in RNG.permutation(METRICS)[: RNG.integers(4)]
    ]
    goals = ["min", "max", float(RNG.integers(0, 8) / 8)]
    slacks = [0.0, 0.0, 0.3]
    targets = [
        Target(str(name), goals[RNG.integers(3)], slacks[RNG.integers(3)]) for name in RNG.permutation(METRICS)[: RNG.integers(5)]
    ]
    return constraints, targets


def by_brute_force(metrics: Metrics, constraints: list[Constraint], targets: list[Target]) -> tuple[int, int, Constraint | None]:
    left = [(c, b) for c in range(len(metrics.cuts)) for b in range(len(metrics.bits))]

    def of(name: str, item: tuple[int, int]) -> float:
        return float(metrics.values[name][item])

    broken = None
    for constraint in constraints:
        sign = 1 if constraint.op == "<=" else -1
        over = {item: sign * (of(constraint.metric, item) - constraint.value) for item in left}
        kept = [item for item in left if over[item] <= 0]
        if not kept:
            left = [item for item in left if over[item] == min(over.values())]
            broken = constraint
            break
        left = kept
    for target in targets:
        found = {item: of(target.metric, item) for item in left}
        if target.goal == "min":
            left = [item for item in left if found[item] <= min(found.values()) * (1 + target.slack)]
        elif target.goal == "max":
            left = [item for item in left if found[item] >= max(found.values()) / (1 + target.slack)]
        else:
            away = {item: abs(found[item] - target.goal) for item in left}
            left = [item for item in left if away[item] <= max(min(away.values()), target.slack * target.goal)]
    cut, bits = left[0]
    return int(metrics.cuts[cut]), int(metrics.bits[bits]), broken


def test_the_choice_is_that_of_a_brute_force():
    num_broken = 0
    for _ in range(600):
        metrics = random_metrics(int(RNG.integers(1, 12)), int(RNG.integers(1, 7)))
        constraints, targets = random_wishes()
        choice = choose(metrics, constraints, targets)
        assert (choice.cut, choice.bits, choice.broken) == by_brute_force(metrics, constraints, targets), (constraints, targets)
        row, column = metrics.cuts.tolist().index(choice.cut), metrics.bits.tolist().index(choice.bits)
        assert choice.metrics == {name: array[row, column] for name, array in metrics.values.items()}
        num_broken += choice.broken is not None
    assert 0 < num_broken < 600


def test_earlier_constraints_count_more():
    values = {"latency": np.array([[1.0], [5.0]]), "accuracy": np.array([[0.1], [0.9]])}
    metrics = Metrics(np.array([3, 4]), np.array([8]), values)
    wishes = [Constraint("latency", "<=", 2), Constraint("accuracy", ">=", 0.8)]
    assert (choose(metrics, wishes).cut, choose(metrics, wishes).broken) == (3, wishes[1])
    assert (choose(metrics, wishes[::-1]).cut, choose(metrics, wishes[::-1]).broken) == (4, wishes[0])


def test_500_cuts_times_16_bits_take_little():
    metrics = Metrics(np.arange(500), np.arange(1, 17), {name: RNG.random((500, 16)) for name in METRICS})
    constraints = [Constraint("latency", "<=", 0.9), Constraint("accuracy", ">=", 0.2), Constraint("server_cost", "<=", 0.9)]
    targets = [Target("device_cost", 0.5, 0.2), Target("throughput", "max", 0.1), Target("latency", "min")]
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        choose(metrics, constraints, targets)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.1  # it is 0.2 ms; this only finds what has become slow by orders of magnitude


def test_it_chooses_anew_once_a_metric_has_moved():
    latency = np.array([[1.0, 2.0], [3.0, math.inf]])

    def metrics(factor: float) -> Metrics:
        return Metrics(np.array([0, 1]), np.array([4, 8]), {"latency": latency * np.array([[factor, 1], [1, 1]])})

    replan = Replanner(targets=[Target("latency", "min")])
    first = replan(metrics(1))
    assert (first.cut, first.bits) == (0, 4)
    assert replan(metrics(1.04)) is first
    assert replan(metrics(1.04)) is first  # compared with what the choice was made from
    assert replan(metrics(1.06)) is not first
    assert replan(metrics(9)).bits == 8
    assert has_moved(metrics(1), metrics(1.06))
    assert not has_moved(metrics(1), metrics(1.06), 0.07)
    assert has_moved(metrics(1), Metrics(np.array([0, 2]), np.array([4, 8]), {"latency": latency}))
    assert has_moved(metrics(1), Metrics(np.array([0, 1]), np.array([4, 8]), {"latency": np.full((2, 2), math.inf)}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no metrics"),
        ({"speed": np.ones((2, 3))}, "'speed' is no metric"),
        ({"latency": np.ones((3, 2))}, "shape"),
        ({"latency": np.array([[1, 2, np.nan], [1, 2, 3]])}, "nan"),
        ({"latency": -np.ones((2, 3))}, "from -1"),
        ({"accuracy": np.full((2, 3), 1.5)}, "to 1.0"),
    ],
)
def test_metrics_that_are_none_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Metrics(np.arange(2), np.arange(3), values)


@pytest.mark.parametrize("arguments", [("speed", "<=", 1), ("latency", "<", 1), ("latency", "<=", np.nan), ("latency", "<=", -1),
                                       ("accuracy", ">=", 1.1), ("latency", "<=", "1"), ("latency", "<=", True)])  # fmt: skip
def test_constraints_that_are_none_are_refused(arguments):
    with pytest.raises(InputError, match="Use"):
        Constraint(*arguments)


@pytest.mark.parametrize("arguments", [("speed", "min"), ("latency", "least"), ("latency", np.nan), ("latency", -1.0),
                                       ("latency", "min", -0.1), ("latency", "min", np.nan)])  # fmt: skip
def test_targets_that_are_none_are_refused(arguments):
    with pytest.raises(InputError, match="Use"):
        Target(*arguments)


def test_wishes_that_contradict_each_other_are_refused():
    metrics = Metrics(np.arange(2), np.arange(3), {"latency": np.ones((2, 3))})
    with pytest.raises(InputError, match="cannot be"):
        choose(metrics, [Constraint("latency", "<=", 1), Constraint("latency", ">=", 2)])
    with pytest.raises(InputError, match="two targets"):
        choose(metrics, [], [Target("latency", "min"), Target("latency", "max")])
    for wishes in ([Constraint("accuracy", ">=", 0.5)], []), ([], [Target("accuracy", "max")]):
        with pytest.raises(InputError, match="not known"):
            choose(metrics, *wishes)
    with pytest.raises(InputError, match="share"):
        Replanner(share=-1)
