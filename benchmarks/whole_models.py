"""Whole models under `jax.jit`, with and without aspen."""

from __future__ import annotations

from aspen_jax.report.comparison import compare
from aspen_jax.report.record import write_record
from benchmarks.decorated import decorated
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Size


def models(
    models: Models = ("ResNet50", "MobileNetV2"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 20,
    workers: int | None = None,
    json: File = None,
) -> int:
    """Models with random weights: jax.jit(model) against jax.jit(aspen(model)); first the results, then the times, in turns.

    Args:
        models: names in benchmarks/zoo/catalogue.py, such as resnet50 or bert-base, and in keras.applications, such as ResNet50.
        size: of the inputs.
        rounds: how often each side is timed.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
    """
    results = []
    for model, function in decorated(models, size, rounds, workers):
        results.append(compare(function, model.arguments, name=model.name, rounds=rounds, jitted=True))
        print(f"{results[-1]}\n", flush=True)
    if json is not None:
        write_record(json, {"benchmark": "models", "batch": size.batch, "results": [result.to_json() for result in results]})
    return 0 if all(result.agrees for result in results) else 1
