"""Peak memory of a process that runs a model, with aspen and with `jax.jit`."""

from __future__ import annotations

import dataclasses
import json as jsons
import re
import statistics
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.report.comparison import PLAIN, TILED, TOLERANCE
from aspen_jax.report.difference import largest_difference
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.child import measure_in_child, serve
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Size

_IDLE = "the model, not run"
_CALLS = 5
_LARGEST_SAMPLE = 10_000


@benchmark
def memory(
    models: Models = ("ResNet50",),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 3,
    json: File = None,
) -> Run:
    """Peak resident memory of a process of its own for each side: build a model, compile it, call it five times.

    Args:
        models: names in the zoo, as `models` takes them.
        size: of the inputs.
        rounds: how often each side is measured.
        json: where to write the figures as well.
    """
    words = [jsons.dumps(dataclasses.asdict(size))]
    agree = True
    for name in models:
        peaks: dict[str, list[float]] = {_IDLE: [], PLAIN: [], TILED: []}
        outputs: dict[str, Any] = {}
        for _ in range(rounds):
            for side, samples in peaks.items():
                measured = measure_in_child("benchmarks.memory", (side, name, *words))
                samples.append(measured["peak_bytes"])
                outputs[side] = [np.asarray(output, np.float32) for output in measured["outputs"]]
        difference = largest_difference(outputs[TILED], outputs[PLAIN])
        ratio = statistics.median(peaks[TILED]) / statistics.median(peaks[PLAIN])
        title = f"{name}, batch {size.batch}: largest difference {difference:.1e} of the largest output"
        table = Table(title, {"": "", "min, MiB": ".0f", "median, MiB": ".0f"})
        for side, samples in peaks.items():
            table.add(side, min(samples) / 2**20, statistics.median(samples) / 2**20, samples_bytes=samples)
        yield table
        yield f"aspen needs {ratio:.2f} times as much as jax.jit\n"
        agree &= difference <= TOLERANCE
    yield 0 if agree else 1


def _measure(side: str, name: str, size: str) -> dict[str, Any]:
    model = zoo.build(name, Size(**jsons.loads(size)))  # not calibrated: that has a peak of its own
    outputs: Any = []
    if side != _IDLE:
        run = jax.jit(model.apply if side == PLAIN else aspen(model.apply, weights=0))
        for _ in range(_CALLS):
            outputs = jax.tree.map(np.asarray, run(*model.arguments))
    return {"peak_bytes": _peak_bytes(), "outputs": [_sample(output) for output in jax.tree.leaves(outputs)]}


def _sample(output: np.ndarray) -> list[float]:
    """Some numbers of an output, the largest among them: logits of a long text would be a long message."""
    flat = output.reshape(-1)
    return [*flat[:: max(1, flat.size // _LARGEST_SAMPLE)].tolist(), flat[np.abs(flat).argmax()].item()]


def _peak_bytes() -> int:
    # Not getrusage: its figure begins with the memory of the process that forked this one.
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


if __name__ == "__main__":
    serve(_measure)
