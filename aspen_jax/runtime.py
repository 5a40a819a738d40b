"""The engine as the rest of the package uses it: its custom call, its workers."""

from __future__ import annotations

import functools
import logging
import operator
import os
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jaxlib
import numpy as np

from aspen_jax.errors import EngineError, InputError

try:
    from aspen_jax import _engine
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{pathlib.Path(__file__).parent} has no extension module for this Python: if it is a checkout, start Python elsewhere "
        "after `pip install .`, or install it with `pip install -e .`"
    ) from error

CUSTOM_CALL_TARGET = "aspen_run"
"""Name of the custom call, for `jax.export.DisabledSafetyCheck.custom_call`."""


HOW_TO_HAVE_ALL_TARGETS = "pip install . -Ccmake.define.ASPEN_CPU_TARGETS=all"
"""The command that compiles the kernels for every CPU target, in a checkout."""

_logger = logging.getLogger("aspen_jax")
_untold = [None]  # taken out by who tells; popping is atomic


def targets_left_out() -> list[str]:
    """CPU targets that this machine can run and this build has no kernels for, the best last."""
    built = _engine.cpu_targets_compiled()
    return [target for target in _engine.cpu_targets_runnable() if target not in built]


def tell_of_targets_left_out() -> None:
    """Warn, once a process, that this machine could run faster kernels than this build has.

    Whoever names a target by ASPEN_CPU_TARGET knows which one runs, and is not told.
    """
    best = _engine.cpu_targets_runnable()[-1]
    if best not in targets_left_out() or os.environ.get("ASPEN_CPU_TARGET"):
        return
    try:
        _untold.pop()
    except IndexError:
        return
    _logger.warning(
        "this processor runs the CPU target %s, but this build has kernels for %s alone, which are slower; to have all, run "
        '`%s` in a checkout. logging.getLogger("aspen_jax").setLevel("ERROR") silences this.',
        best,
        ", ".join(_engine.cpu_targets_compiled()),
        HOW_TO_HAVE_ALL_TARGETS,
    )


@functools.cache
def ensure_registered() -> None:
    """Register the custom call with XLA; done once, needs no JAX backend yet and starts none.

    Raises:
        EngineError: the installed jaxlib is older than the one that the engine was built for, or refuses the engine.
    """
    if _release(jaxlib.__version__) < _release(_engine.built_for_jaxlib):
        raise EngineError(
            f"aspen_jax was built for jaxlib {_engine.built_for_jaxlib}, but jaxlib {jaxlib.__version__} is installed; upgrade "
            "it (pip install --upgrade jax) or build aspen_jax again for this one (pip install --no-build-isolation)"
        )
    try:
        jax.ffi.register_ffi_target(CUSTOM_CALL_TARGET, _engine.registrations(), platform="cpu")
        jax.ffi.register_ffi_target(CUSTOM_CALL_TARGET, _engine.cuda_registrations(), platform="CUDA")
    except Exception as error:
        raise EngineError(
            f"jaxlib {jaxlib.__version__} does not accept the engine, which was built for jaxlib {_engine.built_for_jaxlib}: "
            f"{error}; install a newer aspen_jax, or build it again for this jaxlib (pip install --no-build-isolation)"
        ) from error


NOTHING = jax.ShapeDtypeStruct((0,), np.uint8)
"""The type of a last result that holds nothing, which any call may have.

Where a custom call is the whole body of a `while_loop`, XLA (while_util.cc, GetInvariantGTEsForWhileBody) takes the call for
the tuple of the new carries, and its operands for their values. A counter that is an operand seems never to change, and the loop
never ends. A call with one result more than there are carries is no such tuple.
"""


def engine_call(
    graph: np.ndarray,
    results: Sequence[jax.ShapeDtypeStruct],
    *operands: Any,
    shared_memory: Mapping[int, int] = MappingProxyType({}),
) -> list[jax.Array]:
    """The custom call as a JAX operation; for use under a trace or eagerly, on the CPU platform.

    Args:
        graph: uint8 array [bytes], a graph (docs/graph_format.md).
        results: shape and dtype of each result of the graph.
        operands: the operands of the graph.
        shared_memory: operands that the graph rewrites, and for each of them the result that is to have its memory. XLA copies
            the operand first where something else reads it afterwards, or the caller keeps it.

    Returns:
        One array for each of `results`. What does not fit the graph is refused by the call itself, with an error of XLA.
    """
    ensure_registered()
    tell_of_targets_left_out()
    call = jax.ffi.ffi_call(CUSTOM_CALL_TARGET, list(results), input_output_aliases=dict(shared_memory))
    return list(call(*operands, graph=graph))


def trust(graph: bytes) -> None:
    """Spare runs of a graph that this process has built what they do against missing edges; see `_engine.trust`."""
    _engine.trust(graph)


def num_workers() -> int:
    """How many workers (DSEs) the engine has.

    Raises:
        InputError: the environment variable ASPEN_NUM_WORKERS is not a number of workers.
    """
    return _engine.num_workers()


def set_num_workers(n: int) -> None:
    """Change how many workers (DSEs) the engine has; runs in flight go on.

    Raises:
        InputError: `n` is not an integer of at least 1 (and at most 1024).
    """
    try:
        count = operator.index(n)
    except TypeError:
        count = None
    if count is None or isinstance(n, bool):
        raise InputError(f"the number of workers must be an integer, not {n!r}; pass 1 or more")
    if not -(2**31) <= count < 2**31:
        raise InputError(f"the number of workers is {count}; pass 1 or more, about as many as there are cores")
    _engine.set_num_workers(count)


class Limits:
    """What runs of graphs may take, as `limits` has set it. As a context manager it brings back what held before.

    Attributes:
        workspace: bytes; None: any number.
        nanoseconds: None: any number.
    """

    def __init__(self, workspace: int | None, nanoseconds: int | None):
        self._before = _engine.limits()
        self.workspace, self.nanoseconds = workspace, nanoseconds
        _engine.set_limits(workspace, nanoseconds)

    def __enter__(self) -> Limits:
        return self

    def __exit__(self, *_: object) -> None:
        _engine.set_limits(*self._before)

    def __repr__(self) -> str:
        return f"limits(workspace={self.workspace}, nanoseconds={self.nanoseconds})"


class _AsBefore:
    """The default of an argument that changes nothing."""

    def __repr__(self) -> str:
        return "AS_BEFORE"


AS_BEFORE = _AsBefore()


def limits(*, workspace: int | _AsBefore | None = AS_BEFORE, nanoseconds: int | _AsBefore | None = AS_BEFORE) -> Limits:
    """Limit what runs of graphs may take, in the whole process.

    Use it before you run a graph from somebody whom you do not trust. Limits hold for `TileGraph.run`, `TileGraph.timeline`,
    `aspen_jax.schedule.run`, and runs whose inputs arrive in pieces. Calls of decorated functions have no limits, under `jax.jit`
    or without, nor have their streams: the graph of a call is your program's own. Runs that have begun keep the limits that they
    began with.

    Args:
        workspace: the most bytes of memory that a run may need beside its inputs and results: its workspace, and the scratch of a
            worker. Of a run over several memories, the workspaces and results in all of them. A run that needs more is refused
            before it takes any. None: any number. Not given: as before.
        nanoseconds: how long a run may take. Waits count too: for other runs, for pieces of inputs, for copies between memories.
            A run that takes longer ends at its next tile, and while it waits for pieces or copies. A tile that has begun is not
            stopped, nor is a policy that places one. None: any number. Not given: as before.

    Returns:
        The limits that hold now. In a `with` statement they hold until its end, and then those from before.

    Raises:
        InputError: a limit is no integer of 0 or more.

    Example:
        >>> with aspen_jax.limits(workspace=1 << 30, nanoseconds=2 * 10**9):
        ...     result = TileGraph.load("strangers.aspen").run(x)
    """
    before = _engine.limits()
    return Limits(
        before[0] if isinstance(workspace, _AsBefore) else _limit("workspace", workspace),
        before[1] if isinstance(nanoseconds, _AsBefore) else _limit("nanoseconds", nanoseconds),
    )


def _limit(name: str, given: Any) -> int | None:
    if given is None:
        return None
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if isinstance(given, bool) or not 0 <= number < 2**63:
        raise InputError(f"the limit {name} is {given!r}; pass an integer of 0 or more, or None for no limit")
    return number


PATIENCE = 1.0
"""Seconds after its arrival at which a run is due that has no deadline; so much earlier for each unit of priority."""

_MOST_PRIORITY = 1_000_000


def run_key(priority: int | None, deadline: float | None) -> int:
    """The time at which a run is due, in nanoseconds after a run without priority and deadline; the earliest goes first.

    Args:
        priority: an integer, larger ones first; 0 if None.
        deadline: seconds from the run's arrival; `PATIENCE` if None.

    Raises:
        InputError: one of them is no such number.
    """
    priority = 0 if priority is None else priority
    deadline = PATIENCE if deadline is None else deadline
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _MOST_PRIORITY:
        raise InputError(f"priority={priority!r} is no integer from {-_MOST_PRIORITY:,} to {_MOST_PRIORITY:,}; pass 1, say")
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 < deadline <= _MOST_PRIORITY:
        raise InputError(f"deadline={deadline!r} is no number of seconds above 0 and up to {_MOST_PRIORITY:,}; pass 0.02, say")
    return round(1e9 * (deadline - PATIENCE * (1 + priority)))


def _release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: (0, 10, 2) of "0.10.2.dev3"."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


ensure_registered()
