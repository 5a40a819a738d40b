"""How fine to cut: a model's time over the number of tiles a layer (ASPEN, section 4.4, figure a)."""

from __future__ import annotations

import functools
import math

from aspen_jax import apu, aspen, num_workers
from aspen_jax.cost import measured
from aspen_jax.cost.measured import Measured, Measurements
from aspen_jax.cost.tiling import by_price
from aspen_jax.cost.timing import interleaved
from aspen_jax.errors import InputError
from aspen_jax.ir.program import Op, Program
from aspen_jax.ir.random_array import random_array
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.picture import save_curves
from benchmarks.zoo.model import Size

_CHOSEN = "as chosen"


@benchmark
def tiles(
    models: Models = ("ResNet50",),
    size: Sizes = Size(),  # noqa: B008 - immutable
    counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    rounds: int = 10,
    workers: int | None = None,
    json: File = None,
    picture: File = None,
) -> Run:
    """Models with every op cut into so many tiles, as near as its shape allows, beside the cost model's choice.

    Args:
        models: names in the zoo, as `models` takes them; the part with most ops counts where XLA keeps some.
        size: of the inputs.
        counts: numbers of tiles.
        rounds: how often each is timed.
        workers: workers; all usable cores by default.
        json: where to write the figures as well.
        picture: where to draw the times, a PNG, PDF or SVG file.
    """
    if min(counts, default=1) < 1:
        raise InputError(f"{min(counts)} tiles a layer are asked for; take 1 or more")
    threads, curves = num_workers(), {}
    for name in models:
        model = zoo.build(name, size)
        chosen = max((part.graph for part in aspen(model.apply).explain(*model.arguments).parts), key=lambda graph: graph.num_ops)
        program = chosen.program()
        graphs = {str(count): apu.build(program, threads, _machine(program, threads, count)) for count in counts}
        graphs[_CHOSEN] = chosen
        inputs = [random_array(value) for value in program.inputs]
        timings = interleaved({key: functools.partial(graph.run, *inputs) for key, graph in graphs.items()}, rounds)
        table = Table(f"{name}, {threads} workers", {"tiles a layer": "", "tiles": "d", "min": "s", "median": "s"})
        for key, timing in timings.items():
            table.add(key, graphs[key].num_tiles, timing.minimum, timing.median, samples_s=timing.samples)
        yield table
        curves[name] = [(count, timings[str(count)].minimum * 1e3) for count in counts]
    if picture is not None:
        save_curves(picture, f"{threads} workers, batch {size.batch}", "tiles a layer", "ms a call", curves, log_x=True)


def _machine(program: Program, workers: int, count: int) -> apu.Machine:
    """A cost model that cuts each op into `count` tiles."""
    entries = {measured.key(op): Measured(_nearest(op, workers, count), 1.0) for op in program.ops if op.output.size}
    return apu.Machine(measured=Measurements(entries))


def _nearest(op: Op, workers: int, count: int) -> tuple[int, ...]:
    """The cut of an op into the number of tiles nearest to `count`; of several the one that the cost model prefers."""
    return min(by_price(op, workers, apu.Machine()), key=lambda parts: abs(math.log(math.prod(parts) / count)))
