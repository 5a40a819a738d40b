"""Times products on a GPU by each candidate, and functions by XLA and each executor: device="auto" takes what is the fastest."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from aspen_jax.cost.timing import duration, interleaved
from aspen_jax.errors import AspenError, UnsupportedError
from aspen_jax.ir.program import Value
from aspen_jax.ir.random_array import random_array
from aspen_jax.lowering.compile import Compiled, Options, compile_jaxpr
from aspen_jax.primitive import primitive
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda import times
from aspen_jax.targets.cuda.executor import EXECUTORS
from aspen_jax.targets.cuda.product_tuning import DeviceTimer, KernelTuning, tune_kernels
from aspen_jax.targets.cuda.target import CudaTarget
from aspen_jax.targets.target import Tuned

_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class ExecutorTimes(Tuned):
    """How long a function takes on a GPU.

    Attributes:
        seconds: a call, from call to results on the device, the median of some rounds; by XLA ("xla") and each executor.
        path: the file that keeps it; None where it could not be written.
        kernels: what was found of products before; None where they were not timed.
    """

    seconds: dict[str, float]
    path: Path | None
    kernels: KernelTuning | None = None

    @property
    def fastest(self) -> str:
        """What device="auto" takes from now on."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    def __str__(self) -> str:
        each = ", ".join(f"{duration(seconds)} by {name}" for name, seconds in self.seconds.items())
        kernels = f"{self.kernels}\n" if self.kernels else ""
        return f"{kernels}a run takes {each}; {f'kept in {self.path}' if self.path else 'not kept on disk'}"


def gpu() -> Any:
    """The first GPU.

    Raises:
        AspenError: JAX has none.
    """
    try:
        return jax.local_devices(backend="cuda")[0]
    except RuntimeError as error:
        raise AspenError(f"JAX has no GPU here ({error}); install jax[cuda13], or decorate with device='cpu'") from error


def tuned(jaxprs: Sequence[ClosedJaxpr], choices: Choices, name: str) -> ExecutorTimes:
    """Time products, then functions; see `Target.tune`."""
    device = gpu()
    if not jaxprs:
        raise UnsupportedError(f"{name} has no tiles to tune; explain() with the same arguments says why")
    kernels = tune_products(jaxprs, choices)
    return dataclasses.replace(time_executors(jaxprs, choices, device), kernels=kernels)


def time_executors(jaxprs: Sequence[ClosedJaxpr], choices: Choices, device: Any, rounds: int = _ROUNDS) -> ExecutorTimes:
    """Time functions one by one on random arguments, all sides in turns, and keep the times.

    Args:
        jaxprs: what `aspen_call` calls.
        choices: of those calls.
        device: where.
        rounds: how often each side is timed.

    Raises:
        UnsupportedError: no op of a function has CUDA code, or random arguments cannot be made for it.
        AspenError: code cannot be compiled here.
    """
    total = dict.fromkeys(EXECUTORS, 0.0)
    path = None
    for jaxpr in jaxprs:
        name = times.key(_compiled(jaxpr, choices))
        arguments = [jax.device_put(random_array(_value(aval)), device) for aval in jaxpr.in_avals]
        functions = sides(jaxpr, choices, arguments)
        seconds = {side: timing.median for side, timing in interleaved(functions, rounds).items()}
        path = times.remember(name, seconds)
        total = {side: total[side] + seconds[side] for side in total}
    return ExecutorTimes(total, path)


def tune_products(jaxprs: Sequence[ClosedJaxpr], choices: Choices) -> KernelTuning:
    """Time the candidates of functions' products on the first GPU, and keep the fastest (product_tuning.py).

    Raises:
        UnsupportedError: no op of a function has CUDA code.
        AspenError: code cannot be compiled here.
    """
    compiled = [_compiled(jaxpr, choices) for jaxpr in jaxprs]
    parts = [part for item in compiled for function in (item, *item.bodies) for part in function.parts]
    disabled = parts[0].options.disabled_passes if parts else frozenset[str]()
    return tune_kernels([part.traced for part in parts], disabled, DeviceTimer())


def sides(jaxpr: ClosedJaxpr, choices: Choices, arguments: Sequence[Any]) -> dict[str, Callable[[], Any]]:
    """The function by XLA and by each executor, compiled for where the arguments are; each gives the results."""

    def function(name: str, *arguments: Any) -> Any:
        return primitive.bind(jaxpr, arguments, choices=choices._replace(executor=name))

    compiled = {name: jax.jit(functools.partial(function, name)).lower(*arguments).compile() for name in EXECUTORS}
    return {name: functools.partial(item, *arguments) for name, item in compiled.items()}


def _compiled(jaxpr: ClosedJaxpr, choices: Choices) -> Compiled:
    target = CudaTarget.here()
    compiled = compile_jaxpr(jaxpr, Options(choices._replace(executor="graph"), target))
    if not target.is_ready(compiled) or not (compiled.parts or compiled.bodies):
        raise UnsupportedError("there is no CUDA code for the function, so there is nothing to choose; XLA runs it on GPUs")
    return compiled


def _value(aval: Any) -> Value:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        raise UnsupportedError(f"no random argument can be made of type {aval.str_short()}; tune a function without it")
    return Value(tuple(aval.shape), aval.dtype)
