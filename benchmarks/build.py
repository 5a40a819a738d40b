"""How long it takes from a jaxpr to a graph that is ready to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from aspen_jax import _engine, apu, frontend
from aspen_jax.compile import Options, compile_jaxpr
from aspen_jax.demo.keras_application import keras_application
from aspen_jax.passes import run_passes
from aspen_jax.program import Program
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import Timing, aligned, check_rounds, duration
from benchmarks.options import File, Models

TOTAL = "jaxpr to ready graph"


def build(
    names: Models = ("ResNet50", "MobileNetV2"), /, image_size: int | None = None, rounds: int = 3, json: File = None
) -> int:
    """Seconds from jaxpr to ready graph, and its stages one by one.

    Args:
        names: models, by their names in keras.applications.
        image_size: height and width of the images; each model's own by default.
        rounds: how often each is built.
        json: where to write the figures as well.
    """
    check_rounds(rounds)
    results = []
    for name in names:
        model = keras_application(name, image_size)
        arguments = (model.params, model.random_images(1))

        def trace(predict: Callable[..., Any] = model.predict, arguments: Any = arguments) -> ClosedJaxpr:
            # A function of its own each time, or JAX would remember the jaxpr and compile_jaxpr the graph.
            return jax.make_jaxpr(lambda *args: predict(*args))(*arguments)

        compiled = compile_jaxpr(trace(), Options())
        for part in compiled.parts:
            part.graph.verify()
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for stage, seconds in [*_whole(trace()), *_stages(trace())]:
                times.setdefault(stage, []).append(seconds)
        timings = {stage: Timing(tuple(samples)) for stage, samples in times.items()}
        tiles = sum(part.graph.num_tiles for part in compiled.parts)
        size = sum(part.graph_bytes.nbytes for part in compiled.parts)
        print(f"{name}: {tiles} tiles, {sum(part.graph.num_edges for part in compiled.parts)} edges, {size} bytes")
        rows = [(stage, duration(timing.minimum), duration(timing.median)) for stage, timing in timings.items()]
        print("\n".join(aligned([("", "min", "median"), *rows])), end="\n\n", flush=True)
        results.append({"name": name, "tiles": tiles, "stages": {stage: timing.to_json() for stage, timing in timings.items()}})
    if json is not None:
        write_record(json, {"benchmark": "build", "results": results})
    return 0


def _whole(jaxpr: ClosedJaxpr) -> Iterator[tuple[str, float]]:
    start = time.perf_counter()
    for part in compile_jaxpr(jaxpr, Options()).parts:
        _engine.Plan(part.graph_bytes.tobytes())
    yield TOTAL, time.perf_counter() - start


def _stages(jaxpr: ClosedJaxpr) -> Iterator[tuple[str, float]]:
    options = Options()
    start = time.perf_counter()

    def lap(name: str) -> tuple[str, float]:
        nonlocal start
        before, start = start, time.perf_counter()
        return f"  {name}", start - before

    steps = frontend.trace(jaxpr).steps
    yield lap("front end")
    programs = [run_passes(step, options.disabled_passes) for step in steps if isinstance(step, Program)]
    yield lap("passes")
    graphs = [apu.build(program, options.num_workers) for program in programs]
    yield lap("tiles and edges")
    encoded = [graph.to_bytes() for graph in graphs]
    yield lap("bytes")
    plans = [_engine.Plan(item) for item in encoded]
    yield lap("engine")
    del plans
