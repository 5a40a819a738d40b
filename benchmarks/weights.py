"""What the three ways to hand in weights cost (design: constants, prepared arrays, plain tracers)."""

from __future__ import annotations

import functools

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.cost.timing import interleaved, speedup, table
from aspen_jax.report.comparison import PLAIN, TOLERANCE
from aspen_jax.report.difference import largest_difference
from aspen_jax.report.record import write_record
from benchmarks.decorated import decorated
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Size

_TRACED, _PREPARED, _CLOSED = "plain tracers", "prepared", "closed over"


def weights(
    models: Models = ("ResNet50",),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 20,
    workers: int | None = None,
    json: File = None,
) -> int:
    """Models under `jax.jit` with weights as plain tracers, prepared, and closed over: first the results, then times, in turns.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often each way is timed.
        workers: cores for all sides; all usable ones by default.
        json: where to write the figures as well.
    """
    results = []
    for model, function in decorated(models, size, rounds, workers):
        jitted = jax.jit(function)
        prepared = function.prepare(*model.arguments)
        closed = jax.jit(aspen(functools.partial(model.apply, model.params)))
        calls = {
            PLAIN: functools.partial(jax.jit(model.apply), *model.arguments),
            _TRACED: functools.partial(jitted, *model.arguments),
            _PREPARED: functools.partial(jitted, prepared, *model.inputs),
            _CLOSED: functools.partial(closed, *model.inputs),
        }
        outputs = {way: [np.asarray(leaf) for leaf in jax.tree.leaves(call())] for way, call in calls.items()}
        difference = max(largest_difference(output, outputs[PLAIN]) for output in outputs.values())
        print(f"{model.name}, batch {size.batch}: largest difference {difference:.1e} of the largest output")
        if not difference <= TOLERANCE:
            print("the results differ; nothing is timed")
            return 1
        timings = interleaved(calls, rounds)
        print(table(timings))
        ratios = {way: speedup(timings[_TRACED], timings[way]) for way in (_PREPARED, _CLOSED)}
        print(
            ", ".join(f"{way} {ratio:.2f} times as fast as plain tracers" for way, ratio in ratios.items()),
            end="\n\n",
            flush=True,
        )
        timed = {way: timing.to_json() for way, timing in timings.items()}
        results.append({"name": model.name, "batch": size.batch, "difference": difference, "timings": timed, "ratios": ratios})
    if json is not None:
        write_record(json, {"benchmark": "weights", "results": results})
    return 0
