"""Where to cut and how many bits to send: the best of all configurations, by a user's wishes in order (DynO, section 3.5)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from aspen_jax.errors import InputError

Metric = Literal["latency", "throughput", "server_cost", "device_cost", "accuracy"]
METRICS: tuple[Metric, ...] = get_args(Metric)
_MOST = dict.fromkeys(METRICS, math.inf) | {"accuracy": 1.0}


@dataclasses.dataclass(frozen=True, eq=False)
class Metrics:
    """What each configuration is predicted to do. A configuration is a cut and a number of bits.

    Attributes:
        cuts: int64 [C], the numbers of the cuts.
        bits: int64 [B], the numbers of bits.
        values: Of each metric, float64 [C, B]. latency: seconds a request takes. throughput: requests a second, when they follow
            each other. server_cost, device_cost: seconds of computation on that side. accuracy: from 0 to 1. Any may be left out;
            infinite ones are allowed.

    Raises:
        InputError: A metric is unknown, or an array has another shape, a NaN, a negative value or an accuracy above 1.
    """

    cuts: np.ndarray
    bits: np.ndarray
    values: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        shape = (*np.shape(self.cuts), *np.shape(self.bits))
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"cuts and bits have the shapes {np.shape(self.cuts)} and {np.shape(self.bits)}. Pass two vectors")
        if not self.values:
            raise InputError(f"there are no metrics to choose by. Pass some of {', '.join(METRICS)}")
        for name, array in self.values.items():
            _check_metric(name)
            if np.shape(array) != shape:
                raise InputError(f"{name} has the shape {np.shape(array)}. Pass one of shape {shape}, [cuts, bits]")
            if not (np.min(array) >= 0 and np.max(array) <= _MOST[name]):  # false for NaN too
                raise InputError(f"{name} goes from {np.min(array)} to {np.max(array)}. Pass values from 0 to {_MOST[name]}")


@dataclasses.dataclass(frozen=True)
class Constraint:
    """What a configuration has to keep: a metric is at most, or at least, a value.

    Raises:
        InputError: The metric or the operator is unknown, or the value is NaN or out of the metric's range.
    """

    metric: Metric
    op: Literal["<=", ">="]
    value: float

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        if self.op not in ("<=", ">="):
            raise InputError(f"the operator of a constraint is {self.op!r}. Use <= or >=")
        _check_value(self.metric, self.value)

    def excess(self, values: np.ndarray) -> np.ndarray:
        """How much values break the constraint by; 0 or less where they keep it."""
        return values - self.value if self.op == "<=" else self.value - values


@dataclasses.dataclass(frozen=True)
class Target:
    """What is wished for: a metric as small or as large as possible, or close to a value.

    Attributes:
        metric: The metric.
        goal: "min", "max", or a value.
        slack: What counts as equally good, as a share of the best. The next target then chooses among those: 0.1 after latency
            gives 10% of it away for what comes next.

    Raises:
        InputError: The metric is unknown, the goal or the slack is no such number.
    """

    metric: Metric
    goal: Literal["min", "max"] | float
    slack: float = 0.0

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        if self.goal not in ("min", "max"):
            _check_value(self.metric, self.goal)
        if not 0 <= self.slack < math.inf:
            raise InputError(f"slack = {self.slack!r} of the target for {self.metric} is no share. Use 0 or more")

    def best(self, values: np.ndarray) -> np.ndarray:
        """Which of the values are the best or within the slack of it, bool."""
        if self.goal == "min":
            return values <= values.min() * (1 + self.slack)
        if self.goal == "max":
            return values >= values.max() / (1 + self.slack)
        distance = np.abs(values - float(self.goal))
        return distance <= max(distance.min(), self.slack * float(self.goal))


@dataclasses.dataclass(frozen=True)
class Choice:
    """A configuration.

    Attributes:
        cut: The number of the cut.
        bits: Bits of a float on the link.
        metrics: What is predicted of it.
        broken: The first constraint that no configuration keeps, and to which this one comes closest; None where all are kept.
    """

    cut: int
    bits: int
    metrics: Mapping[str, float]
    broken: Constraint | None = None


def choose(metrics: Metrics, constraints: Sequence[Constraint] = (), targets: Sequence[Target] = ()) -> Choice:
    """The best configuration.

    Constraints drop configurations in the order given. Where one would drop all that are left, the choice is the one that breaks
    it least, and the later ones are not asked. Targets then choose among those left, in the order given. Of equally good
    configurations the first one wins, as `metrics` orders them: by cut, then by bits.

    Args:
        metrics: Of all configurations.
        constraints: Ordered by importance.
        targets: Ordered by importance.

    Raises:
        InputError: A metric is not in `metrics`, two constraints exclude each other, or two targets want the same metric.
    """
    values = {name: np.asarray(array, np.float64).reshape(-1) for name, array in metrics.values.items()}
    _check_wishes(values, constraints, targets)
    left = np.arange(len(metrics.cuts) * len(metrics.bits))
    broken = None
    for constraint in constraints:
        excess = constraint.excess(values[constraint.metric][left])
        if (excess <= 0).any():
            left = left[excess <= 0]
        else:
            left, broken = left[excess == excess.min()], constraint
            break
    for target in targets:
        left = left[target.best(values[target.metric][left])]
    cut, bits = divmod(int(left[0]), len(metrics.bits))
    found = {name: float(array[left[0]]) for name, array in values.items()}
    return Choice(int(metrics.cuts[cut]), int(metrics.bits[bits]), found, broken)


def has_moved(old: Metrics, new: Metrics, share: float = 0.05) -> bool:
    """Whether a metric of any configuration differs by more than a share of what it was."""
    if old.values.keys() != new.values.keys() or not np.array_equal(old.cuts, new.cuts) or not np.array_equal(old.bits, new.bits):
        return True
    for name, before in old.values.items():
        after = new.values[name]
        with np.errstate(invalid="ignore"):  # inf - inf: equal, so not moved
            if np.any((after != before) & ~(np.abs(after - before) <= share * np.abs(before))):
                return True
    return False


class Replanner:
    """Chooses anew only when a metric has moved by 5%, so that noise costs neither time nor switches.

    Not for several threads at once.

    Example:
        >>> replan = Replanner(targets=[Target("latency", "min")])
        >>> choice = replan(profile.metrics(...))
    """

    def __init__(self, constraints: Sequence[Constraint] = (), targets: Sequence[Target] = (), share: float = 0.05) -> None:
        if not 0 <= share < math.inf:
            raise InputError(f"share = {share!r} is no share. Use 0 or more; 0.05 is the paper's")
        self._constraints, self._targets, self._share = tuple(constraints), tuple(targets), share
        self._last: tuple[Metrics, Choice] | None = None

    def __call__(self, metrics: Metrics) -> Choice:
        """The choice for these metrics, or the last one where they have not moved since it was made."""
        if self._last is None or has_moved(self._last[0], metrics, self._share):
            self._last = metrics, choose(metrics, self._constraints, self._targets)
        return self._last[1]


def _check_metric(name: object) -> None:
    if name not in METRICS:
        raise InputError(f"{name!r} is no metric. Use one of {', '.join(METRICS)}")


def _check_value(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= _MOST[name]:
        raise InputError(f"{value!r} is no value of {name}. Use a number from 0 to {_MOST[name]}")


def _check_wishes(known: Mapping[str, object], constraints: Iterable[Constraint], targets: Sequence[Target]) -> None:
    """Raises InputError where wishes contradict each other or are about what is not known."""
    most, least = dict(_MOST), dict.fromkeys(METRICS, 0.0)
    for wish in (*constraints, *targets):
        if wish.metric not in known:
            raise InputError(f"{wish.metric} is not known of any configuration. Use one of {', '.join(known)}")
    for item in constraints:
        if item.op == "<=":
            most[item.metric] = min(most[item.metric], item.value)
        else:
            least[item.metric] = max(least[item.metric], item.value)
        if least[item.metric] > most[item.metric]:
            raise InputError(
                f"{item.metric} cannot be >= {least[item.metric]} and <= {most[item.metric]}. Drop one of the constraints"
            )
    for index, target in enumerate(targets):
        if any(target.metric == other.metric for other in targets[:index]):
            raise InputError(f"two targets want {target.metric}. Keep the more important one")
