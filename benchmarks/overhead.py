"""What a call costs apart from its work: a decorated function of a few numbers beside a custom call that does nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen
from aspen_jax.cost.timing import interleaved
from aspen_jax.errors import EngineError
from benchmarks.benchmark import TIMES, Run, Table, benchmark, times
from benchmarks.native import ffi_handler
from benchmarks.options import File

_EMPTY_TARGET = "aspen_empty_call"
_EMPTY = "empty custom call"


@benchmark
def overhead(rounds: int = 30, workers: int | None = None, json: File = None) -> Run:
    """Microseconds of x + 1 on 8 numbers, by jax.jit and by aspen, beside an empty custom call.

    Args:
        rounds: how often each is timed.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
    """
    jax.ffi.register_ffi_target(_EMPTY_TARGET, ffi_handler("empty_call.cc", _EMPTY_TARGET), platform="cpu")
    x = jnp.arange(8, dtype=jnp.float32)
    empty = jax.jit(jax.ffi.ffi_call(_EMPTY_TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype)))
    decorated = aspen(_add_one, strict=True)
    functions: dict[str, Callable[[jax.Array], Any]] = {
        _EMPTY: empty,
        "x + 1, jax.jit": jax.jit(_add_one),
        "x + 1, aspen": decorated,
        "x + 1, jax.jit(aspen)": jax.jit(decorated),
    }
    for name, function in functions.items():
        if name != _EMPTY and not np.array_equal(function(x), np.arange(1, 9, dtype=np.float32)):
            raise EngineError(f"{name} gives {function(x)} for {x}; report this")
    timings = interleaved({name: lambda function=function: function(x) for name, function in functions.items()}, rounds)
    table = Table("", {"": "", **TIMES, "us beside an empty custom call": "+.1f"})
    for name, timing in timings.items():
        more = _median_difference(timing.samples, timings[_EMPTY].samples)
        table.add(name, *times(timing), more * 1e6, samples_s=timing.samples)
    yield table


def _add_one(x: jax.Array) -> jax.Array:
    return x + 1


def _median_difference(samples: tuple[float, ...], others: tuple[float, ...]) -> float:
    return statistics.median(a - b for a, b in zip(samples, others, strict=True))
