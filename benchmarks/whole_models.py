"""Whole models under `jax.jit`, with and without aspen."""

from __future__ import annotations

from aspen_jax import aspen
from aspen_jax.report.comparison import PLAIN, TILED, compare
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Size


@benchmark
def models(
    models: Models = ("ResNet50", "MobileNetV2"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 20,
    workers: int | None = None,
    json: File = None,
) -> Run:
    """Models with random weights: jax.jit(model) against jax.jit(aspen(model)); first the results, then the times, in turns.

    Args:
        models: names in benchmarks/zoo/catalogue.py, such as resnet50 or bert-base, and in keras.applications, such as ResNet50.
        size: of the inputs.
        rounds: how often each side is timed.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
    """
    columns = {"model": "", "tiles": "d", "edges": "d", "difference": ".1e", PLAIN: "s", TILED: "s"}
    table = Table("", {**columns, "times as fast": ".2f", "GFLOP/s": ".3g"}, printed="")
    agree = True
    for name in models:
        model = zoo.build(name, size).calibrated()
        function = aspen(model.apply, weights=0)
        result = compare(function, model.arguments, name=model.name, rounds=rounds, jitted=True)
        yield f"{result}\n"
        cells: list[float | None] = [None] * 4
        if result.agrees:
            minima = [result.timings[side].minimum for side in (PLAIN, TILED)]
            cells = [*minima, result.speedup, result.flops / minima[1] / 1e9]
        table.add(model.name, result.tiles, result.edges, result.difference, *cells, **result.to_json())
        agree &= result.agrees
    yield table
    yield 0 if agree else 1
