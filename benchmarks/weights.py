"""What the three ways to hand in weights cost (design: constants, prepared arrays, plain tracers)."""

from __future__ import annotations

import functools

import jax

from aspen_jax import aspen
from aspen_jax.cost.timing import speedup
from aspen_jax.report.comparison import PLAIN
from benchmarks import zoo
from benchmarks.benchmark import TIMES, Run, Table, benchmark, timed, times
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Size

_TRACED, _PREPARED, _CLOSED = "plain tracers", "prepared", "closed over"


@benchmark
def weights(
    models: Models = ("ResNet50",),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 20,
    workers: int | None = None,
    json: File = None,
) -> Run:
    """Models under `jax.jit` with weights as plain tracers, prepared, and closed over: first the results, then times, in turns.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often each way is timed.
        workers: cores for all sides; all usable ones by default.
        json: where to write the figures as well.
    """
    for name in models:
        model = zoo.build(name, size).calibrated()
        function = aspen(model.apply, weights=0)
        jitted = jax.jit(function)
        prepared = function.prepare(*model.arguments)
        closed = jax.jit(aspen(functools.partial(model.apply, model.params)))
        calls = {
            PLAIN: functools.partial(jax.jit(model.apply), *model.arguments),
            _TRACED: functools.partial(jitted, *model.arguments),
            _PREPARED: functools.partial(jitted, prepared, *model.inputs),
            _CLOSED: functools.partial(closed, *model.inputs),
        }
        timings = timed(model.name, calls, rounds)
        table = Table(f"{model.name}, batch {size.batch}", {"": "", **TIMES, "times as fast as plain tracers": ".2f"})
        for way, timing in timings.items():
            table.add(way, *times(timing), speedup(timings[_TRACED], timing), samples_s=timing.samples)
        yield table
