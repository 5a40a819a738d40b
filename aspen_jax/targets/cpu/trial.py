"""Parts of which both predictions are close: each side is timed once when compiling, and the times are kept on disk.

All processes that compile one program have to choose alike. So nothing is timed, and no kept time counts, where a program is
exported, runs on several devices, or belongs to several processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from aspen_jax import forks
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.cost import measured
from aspen_jax.cost.timing import fastest
from aspen_jax.errors import InputError
from aspen_jax.frontend.partition import Converted
from aspen_jax.ir.program import Value
from aspen_jax.ir.random_array import random_array
from aspen_jax.targets.cpu.choice import duration

VARIABLE = "ASPEN_TIME_CHOICES"
# Seconds that a decorated function's trials may take when it is compiled.
BUDGET_S = 0.5
# Likewise when it is tuned.
TUNING_S = 10.0

# Predictions are close that differ by less than this factor. They err by as much.
_CLOSE = 2.0
# What a turn of a loop takes is known less.
_CLOSE_OF_LOOPS = 4.0
# A shorter part is not worth the compilation that a trial takes. A loop of few equations compiles soon.
_LEAST_NS, _LEAST_OF_LOOPS_NS = 2e5, 5e4
# Equations that XLA compiles in a second, and bytes that are written in a tenth of the budget's time.
_EQUATIONS_OF_A_SECOND = 300
_MOST_BYTES = 1 << 28
_LEAST_ROUNDS = 3
# Of a trial, both sides run so long at most.
_RUNNING_S = 0.2
# Tiles run what they were so much faster at.
_LEAST_GAIN = 0.03
# Large arrays repeat so many random numbers.
_RANDOM_NUMBERS = 1 << 18

_VERSION = 1
_logger = logging.getLogger("aspen_jax")


class Trials(enum.Enum):
    """What decides where predictions are close: they themselves, times that are kept, or times taken now."""

    OFF = "off"
    KEPT = "kept"
    ON = "on"


def by_environment() -> Trials:
    """What ASPEN_TIME_CHOICES says.

    Raises:
        InputError: it says something else.
    """
    word = os.environ.get(VARIABLE, Trials.ON.value)
    try:
        return Trials(word)
    except ValueError:
        raise InputError(f"{VARIABLE} is {word!r}; write on, kept or off") from None


class Budget:
    """Seconds for trials.

    Attributes:
        whole: how many there were.
        left: how many are left.
    """

    def __init__(self, seconds: float) -> None:
        self.whole = self.left = seconds

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Takes what the block lasts."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.left -= time.perf_counter() - start


@dataclasses.dataclass(frozen=True)
class Times:
    """Shortest times of a part, in nanoseconds."""

    xla: float
    tiles: float

    def why_left_to_xla(self) -> str | None:
        """The reason why XLA runs the part, or None where tiles do."""
        if self.tiles < (1 - _LEAST_GAIN) * self.xla:
            return None
        return f"tiles are not clearly faster: {duration(self.tiles)} when timed, and {duration(self.xla)} in XLA"


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A part to decide.

    Attributes:
        items: its equations.
        graph_bytes: its tiles.
        inputs: what both sides take.
        xla: its equations as a function for jax.jit.
        tiles: its custom call likewise.
        predicted: nanoseconds in XLA and in tiles.
        is_body: whether it is the body of a loop or a branch.
        users_kernels: names and versions of kernels that users have registered, whose times nobody can predict.
    """

    items: Sequence[Converted]
    graph_bytes: bytes
    inputs: Sequence[Value]
    xla: Callable[..., list[Any]]
    tiles: Callable[..., list[Any]]
    predicted: tuple[float, float]
    is_body: bool
    users_kernels: tuple[tuple[str, str], ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether the predictions count for nothing."""
        return bool(self.users_kernels)

    @property
    def is_close(self) -> bool:
        """Whether the predictions may err about who is faster."""
        xla, tiles = self.predicted
        if any(item.equation.primitive.name == "while" for item in self.items):
            return False  # of random numbers it might never end
        has_loop = any(item.body for item in self.items)
        close, least = (_CLOSE_OF_LOOPS, _LEAST_OF_LOOPS_NS) if has_loop else (_CLOSE, _LEAST_NS)
        return self.is_unknown or (min(xla, tiles) >= least and xla < close * tiles and tiles < close * xla)

    @property
    def key(self) -> str:
        """A key that is equal for parts that are the same work on both sides."""
        digest = hashlib.sha256(self.graph_bytes)
        if self.users_kernels:
            digest.update(repr(self.users_kernels).encode())
        for item in self.items:
            shapes = [atom.aval.str_short() for atom in (*item.equation.invars, *item.equation.outvars)]
            digest.update(repr((item.equation.primitive.name, shapes, self.is_body)).encode())
        return digest.hexdigest()[:32]


def settled(case: Case, num_workers: int, trials: Trials, budget: Budget | None) -> Times | None:
    """The times of a part, kept or taken now; None where its predictions decide.

    Args:
        case: the part.
        num_workers: how many workers its tiles are for.
        trials: whether kept times count, and new ones are taken.
        budget: what is left for new ones.
    """
    if trials is Trials.OFF or not case.is_close or jax.process_count() > 1:
        return None
    name = case.key
    known = _known(num_workers)
    if name in known or trials is Trials.KEPT or budget is None:
        return known.get(name)
    if len(case.items) > _EQUATIONS_OF_A_SECOND * budget.whole or sum(value.nbytes for value in case.inputs) > _MOST_BYTES:
        return None
    try:
        with budget.spent():
            # Each side runs once more to be compiled.
            is_affordable = case.is_unknown or (_LEAST_ROUNDS + 1) * sum(case.predicted) < budget.left * 1e9
            found = _timed(case, budget.left) if is_affordable else None
        return _remember(num_workers, name, found)
    except Exception as error:  # the predictions are there, whatever JAX's settings forbid
        _logger.info("a part was not timed: %s", error)
        return None


def _timed(case: Case, seconds: float) -> Times:
    """The shortest times of both sides, in turns, for about so many seconds with compiling."""
    end = time.perf_counter() + seconds
    arrays = list(map(_array, case.inputs))
    # Neither the trace around this nor what the user set for it holds here.
    with (
        jax.ensure_compile_time_eval(),
        jax.disable_jit(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
    ):
        device = jax.local_devices(backend="cpu")[0]
        operands = jax.block_until_ready(jax.device_put([np.bool_(True), *arrays], device))
        jitted = [jax.jit(_in_branch(side) if case.is_body else _whole(side)) for side in (case.xla, case.tiles)]
        compiled = [side.lower(*operands).compile() for side in jitted]
        calls = [functools.partial(_run, side, operands) for side in compiled]
        if case.is_unknown:
            once = [_seconds(call) for call in calls]
            if _LEAST_ROUNDS * sum(once) > end - time.perf_counter():
                return Times(*(float(round(seconds * 1e9)) for seconds in once))
        found = fastest(calls, min(_RUNNING_S, end - time.perf_counter()), _LEAST_ROUNDS)
    return Times(*(float(round(least * 1e9)) for least in found))


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _run(side: Callable[..., list[Any]], operands: Sequence[Any]) -> None:
    jax.block_until_ready(side(*operands))


def _whole(side: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda flag, *operands: side(*operands)


def _in_branch(side: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A side in a branch, which XLA compiles as it does the body of a loop."""

    def branch(flag: Any, *operands: Any) -> list[Any]:
        shapes = jax.eval_shape(side, *operands)
        return jax.lax.cond(flag, side, lambda *_: [jnp.zeros(item.shape, item.dtype) for item in shapes], *operands)

    return branch


def _array(value: Value) -> np.ndarray:
    if value.size <= _RANDOM_NUMBERS:
        return random_array(value)
    return np.resize(random_array(Value((_RANDOM_NUMBERS,), value.dtype)), value.shape)


# None of a part for which no time was left: later processes have to choose alike, so its predictions decide from then on.
_Kept = dict[str, Times | None]
_times: dict[int, _Kept] = {}
_lock = forks.Lock()


def _known(num_workers: int) -> _Kept:
    """The times that are kept for so many workers; read from disk once."""
    with _lock:
        if num_workers not in _times:
            _times[num_workers] = _file(num_workers).read(_parsed)
        return _times[num_workers]


def _remember(num_workers: int, name: str, found: Times | None) -> Times | None:
    """Keeps the times of a part, unless another thread or process has kept some meanwhile; those count."""
    with _lock:
        known: _Kept = {name: found, **_times.get(num_workers, {})}
        kept, _ = _file(num_workers).update({}, _parsed, _to_json, known)
        _times[num_workers] = kept
        return kept[name]


def forget() -> None:
    """Read from disk again when asked next."""
    with _lock:
        _times.clear()


def _to_json(times: Times | None) -> list[float] | None:
    return None if times is None else [times.xla, times.tiles]


def _parsed(entry: Any) -> Times | None:
    if entry is None:
        return None
    xla, tiles = map(float, entry)
    if not (0 < xla < float("inf") and 0 < tiles < float("inf")):
        raise ValueError(f"an entry is {entry!r}")
    return Times(xla, tiles)


def _file(num_workers: int) -> MeasurementFile:
    identity = {**measured.identity(num_workers), "version": _VERSION, "jaxlib": jaxlib.__version__}
    return MeasurementFile("choices", identity)
