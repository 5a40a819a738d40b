"""How long it takes from a jaxpr to a graph that is ready to run."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
from jax.extend.core import ClosedJaxpr

from aspen_jax import _engine, apu
from aspen_jax.cost.timing import Timing
from aspen_jax.frontend import trace as frontend
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.passes import run_passes
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Model, Size

TRACE = "function to jaxpr"
TOTAL = "jaxpr to ready graph"


@benchmark
def build(
    models: Models = ("ResNet50", "MobileNetV2"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 3,
    json: File = None,
) -> Run:
    """Seconds from jaxpr to ready graph, and its stages one by one; and from function to jaxpr, which is JAX's work.

    Args:
        models: names in benchmarks/zoo/catalogue.py, such as resnet50 or bert-base, and in keras.applications, such as ResNet50.
        size: of the inputs.
        rounds: how often each is built.
        json: where to write the figures as well.
    """
    for name in models:
        model = zoo.build(name, size)

        def trace(model: Model = model) -> ClosedJaxpr:
            # A function of its own each time, or JAX would remember the jaxpr and compile_jaxpr the graph.
            return jax.make_jaxpr(lambda *args: model.apply(*args))(*model.arguments)

        compiled = compile_jaxpr(trace(), Options())
        for part in compiled.parts:
            part.graph.verify()
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            start = time.perf_counter()
            jaxpr = trace()
            times.setdefault(TRACE, []).append(time.perf_counter() - start)
            for stage, seconds in [*_whole(jaxpr), *_stages(trace())]:
                times.setdefault(stage, []).append(seconds)
        edges = sum(part.graph.num_edges for part in compiled.parts)
        encoded = sum(part.graph_bytes.nbytes for part in compiled.parts)
        tiles = sum(part.graph.num_tiles for part in compiled.parts)
        table = Table(f"{name}: {tiles} tiles, {edges} edges, {encoded} bytes", {"": "", "min": "s", "median": "s"})
        for stage, seconds in times.items():
            timing = Timing(tuple(seconds))
            table.add(stage, timing.minimum, timing.median, samples_s=seconds)
        yield table


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

    parts = frontend.trace(jaxpr).parts
    yield lap("front end")
    programs = [run_passes(part, options.disabled_passes, options.target.machine) for part in parts]
    yield lap("passes")
    graphs = [apu.build(program, options.target.num_workers, options.target.machine) for program in programs]
    yield lap("tiles and edges")
    encoded = [graph.to_bytes() for graph in graphs]
    yield lap("bytes")
    plans = [_engine.Plan(item) for item in encoded]
    yield lap("engine")
    del plans
