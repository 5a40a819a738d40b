"""Who runs a function on a GPU where device="auto": the fastest side that was timed there. XLA runs what was not timed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from jax.extend.core import ClosedJaxpr

from aspen_jax.cost.timing import duration
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda import times
from aspen_jax.targets.cuda.code.kernel import UnsupportedOp
from aspen_jax.targets.cuda.executor import EXECUTOR_VARIABLE, EXECUTORS, chosen_executor
from aspen_jax.targets.target import Target


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Who runs a function.

    Attributes:
        executor: a name in `EXECUTORS`.
        reason: a sentence's end, without a full stop.
    """

    executor: str
    reason: str


def chosen(jaxpr: ClosedJaxpr, choices: Choices, target: Callable[[], Target]) -> Chosen:
    """Who runs a function with device="auto" on this process's GPU, if nobody decides otherwise.

    Args:
        jaxpr: the function.
        choices: of the call.
        target: gives the GPU.
    """
    kind = times.card()
    if kind is None:
        return Chosen("xla", "JAX has no GPU here")
    of_functions = times.known()
    if not of_functions:  # a graph takes seconds to build
        return Chosen("xla", f"nothing was timed on {kind}; tune() times all sides")
    try:
        compiled = compile_jaxpr(jaxpr, Options(choices._replace(strict=False, executor="graph"), target()))
        timed = of_functions.get(times.key(compiled))
    except UnsupportedOp as error:
        return Chosen("xla", f"there is {error}")
    if timed is None:
        return Chosen("xla", f"this function was not timed on {kind}; tune() times all sides")
    each = ", ".join(f"{duration(timed[name])} by {name}" for name in EXECUTORS)
    return Chosen(min(timed, key=lambda name: timed[name]), f"timed on {kind}: {each}")


def explained(jaxpr: ClosedJaxpr, choices: Choices, target: Callable[[], Target]) -> str | None:
    """Who runs a function on this process's GPU and why, as a sentence; None where there is no GPU, or it is not for one."""
    kind = times.card()
    if kind is None or choices.device not in ("auto", "cuda"):
        return None
    found = chosen(jaxpr, choices, target)
    executor = chosen_executor(choices, lambda: found.executor)
    by_itself = f"device='auto' takes {found.executor}: {found.reason}"
    if os.environ.get(EXECUTOR_VARIABLE):
        return f"on {kind}: {executor}, as {EXECUTOR_VARIABLE} says; without it {by_itself}"
    if choices.device == "cuda":
        return f"on {kind}: {executor}, as device='cuda' says; {by_itself}"
    return f"on {kind}: {by_itself}"
