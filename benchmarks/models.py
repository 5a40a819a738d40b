"""Whole models: the applications that Keras ships, under `jax.jit` with and without aspen."""

from __future__ import annotations

from aspen_jax import aspen
from aspen_jax.demo.keras_application import keras_application
from aspen_jax.report.comparison import compare
from aspen_jax.report.cores import share_cores
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import check_rounds
from benchmarks.options import File, Models


def models(
    names: Models = ("ResNet50", "MobileNetV2"),
    /,
    batch: int = 1,
    image_size: int | None = None,
    rounds: int = 20,
    workers: int | None = None,
    json: File = None,
) -> int:
    """Models of keras.applications, random weights: jax.jit(model) against jax.jit(aspen(model)).

    Args:
        names: models, by their names in keras.applications.
        batch: images a call.
        image_size: height and width of the images; each model's own by default.
        rounds: how often each side is timed.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
    """
    check_rounds(rounds)
    share_cores(workers)
    results = []
    for name in names:
        model = keras_application(name, image_size)
        arguments = (model.calibrated_params(), model.random_images(batch))
        results.append(compare(aspen(model.predict, weights="params"), arguments, name=name, rounds=rounds, jitted=True))
        print(f"{results[-1]}\n", flush=True)
    if json is not None:
        write_record(json, {"benchmark": "models", "batch": batch, "results": [result.to_json() for result in results]})
    return 0 if all(result.agrees for result in results) else 1
