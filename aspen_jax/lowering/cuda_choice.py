"""Who runs a function on a GPU where device="auto": the fastest side that was timed, or else one that is predicted to win.

Times are predicted for kinds of GPU in gpus.json alone. Rates there follow from launches and calls that were timed on such a GPU
(benchmarks/gpu/fit.py). Predictions err, so a graph must win by more than that. On any other GPU XLA runs what was not timed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from importlib import resources

from jax.extend.core import ClosedJaxpr

from aspen_jax.cost.timing import duration
from aspen_jax.cuda.executor import EXECUTOR_VARIABLE, EXECUTORS, chosen_executor
from aspen_jax.cuda.families import UnsupportedOp
from aspen_jax.frontend.partition import Tileable
from aspen_jax.frontend.trace import Trace
from aspen_jax.lowering import cuda_cost
from aspen_jax.lowering import cuda_times as times
from aspen_jax.lowering.choice import Rates, time_of
from aspen_jax.lowering.compile import Compiled, compile_jaxpr, traced
from aspen_jax.lowering.cuda_call import cuda_options
from aspen_jax.primitive.choices import Choices

# A user notices a loss before a gain: what is taken must be so many times as fast.
LEAST_GAIN = 1.10


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What predicts times on a kind of GPU.

    Attributes:
        source: where it was measured.
        rates: nanoseconds of a unit of each amount (cuda_cost.py).
        error: the factor by which the ratio of two predictions errs; most measured rows err less.
    """

    source: str
    rates: Rates
    error: float

    @property
    def gain(self) -> float:
        """How many times as fast as XLA a graph must be predicted to be."""
        return LEAST_GAIN * self.error


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Who runs a function.

    Attributes:
        executor: a name in `EXECUTORS`.
        reason: a sentence's end, without a full stop.
    """

    executor: str
    reason: str


def chosen(jaxpr: ClosedJaxpr, choices: Choices) -> Chosen:
    """Who runs a function with device="auto" on this process's GPU, if nobody decides otherwise.

    Args:
        jaxpr: the function.
        choices: of the call.
    """
    kind = times.card()
    if kind is None:
        return Chosen("xla", "JAX has no GPU here")
    of_functions, calibration = times.known(), calibrations().get(kind)
    if not of_functions and calibration is None:
        return Chosen("xla", f"nothing was timed on {kind}, for which no times are predicted; tune() times both")
    options = cuda_options(choices._replace(strict=False, executor="graph"))
    if not of_functions and calibration is not None:
        # Graphs take seconds to build, which is for nothing where even one without work would not win.
        refused = _without_graph(traced(jaxpr, options), choices, calibration)
        if refused is not None:
            return refused
    try:
        compiled = compile_jaxpr(jaxpr, options)
        timed = of_functions.get(times.key(compiled)) if of_functions else None
    except UnsupportedOp as error:
        return Chosen("xla", f"there is {error}")
    if timed is not None:
        each = ", ".join(f"{duration(timed[name])} by {name}" for name in EXECUTORS)
        return Chosen(min(timed, key=lambda name: timed[name]), f"timed on {kind}: {each}")
    if calibration is None:
        return Chosen("xla", f"this function was not timed on {kind}, for which no times are predicted; tune() times both")
    return _without_graph(compiled.trace, choices, calibration) or _by_prediction(compiled, calibration)


def explained(jaxpr: ClosedJaxpr, choices: Choices) -> str | None:
    """Who runs a function on this process's GPU and why, as a sentence; None where there is no GPU, or it is not for one."""
    kind = times.card()
    if kind is None or choices.device not in ("auto", "cuda"):
        return None
    found = chosen(jaxpr, choices)
    executor = chosen_executor(choices, lambda: found.executor)
    by_itself = f"device='auto' takes {found.executor}: {found.reason}"
    if os.environ.get(EXECUTOR_VARIABLE):
        return f"on {kind}: {executor}, as {EXECUTOR_VARIABLE} says; without it {by_itself}"
    if choices.device == "cuda":
        return f"on {kind}: {executor}, as device='cuda' says; {by_itself}"
    return f"on {kind}: {by_itself}"


def predicted_xla(trace: Trace, calibration: Calibration) -> float:
    """Nanoseconds of a call by XLA of a function that is one part."""
    (step,) = trace.steps
    assert isinstance(step, Tileable)
    amounts = cuda_cost.of_xla(step.items, [operand.value for operand in step.program.outputs])
    return time_of(amounts, calibration.rates.xla)


def predicted_graph(compiled: Compiled, calibration: Calibration) -> float:
    """Nanoseconds of a call of our graph, of a function that is one part."""
    (part,) = compiled.parts
    return time_of(cuda_cost.of_graph(part.program, part.graph), calibration.rates.tiles)


@functools.cache
def calibrations() -> Mapping[str, Calibration]:
    """What predicts times, by the kind of GPU as JAX names it."""
    kinds = json.loads(resources.files("aspen_jax.lowering").joinpath("gpus.json").read_text())
    return {
        kind: Calibration(entry["source"], Rates(entry["xla"], entry["tiles"]), entry["error"]) for kind, entry in kinds.items()
    }


def _without_graph(trace: Trace, choices: Choices, calibration: Calibration) -> Chosen | None:
    """That XLA runs a function, where that follows without its graph."""
    if choices.is_repeated or len(trace.steps) != 1 or not isinstance(trace.steps[0], Tileable):
        return Chosen("xla", "times are predicted only of functions that are one graph, in no loop; tune() times both")
    xla, least = predicted_xla(trace, calibration), time_of({"calls": 1.0}, calibration.rates.tiles)
    if least * calibration.gain < xla:
        return None
    both = f"predicted {duration(xla / 1e9)} by xla, and {duration(least / 1e9)} for a call of a graph without work"
    return Chosen("xla", f"{both}; {_by_how_much(calibration)}")


def _by_prediction(compiled: Compiled, calibration: Calibration) -> Chosen:
    xla, graph = predicted_xla(compiled.trace, calibration), predicted_graph(compiled, calibration)
    executor = "graph" if graph * calibration.gain < xla else "xla"
    both = f"predicted {duration(graph / 1e9)} by graph and {duration(xla / 1e9)} by xla"
    return Chosen(executor, f"{both}; {_by_how_much(calibration)}")


def _by_how_much(calibration: Calibration) -> str:
    return (
        f"a graph must be {calibration.gain:.2f} times as fast, {LEAST_GAIN:.2f} to gain and {calibration.error:.2f} because "
        f"predictions err ({calibration.source})"
    )
