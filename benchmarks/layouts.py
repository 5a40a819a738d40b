"""First convolutions of NCHW networks on the CPU: their input copied to NHWC first, or read through its view."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax import apu
from aspen_jax.cost.timing import aligned, check_rounds, duration, interleaved
from aspen_jax.errors import AspenError
from aspen_jax.frontend import trace as frontend
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ops.conv import Conv2D
from aspen_jax.passes import run_passes
from aspen_jax.report.cores import share_cores
from aspen_jax.report.record import write_record
from benchmarks.options import File

# Channels, outputs, window, stride and size: of ResNet, MobileNet, VGG and a vision transformer.
_CASES = ((3, 64, 7, 2, 224), (3, 32, 3, 2, 224), (3, 64, 3, 1, 224), (3, 768, 16, 16, 224))

# Algorithms that want adjacent channels.
_WITHOUT = frozenset({"winograd", "conv_panels", "bf16x6", "strassen"})


def layouts(rounds: int = 30, workers: int | None = None, json: File = None) -> int:
    """First convolutions of an image in NCHW: copied to NHWC by an op of its own, and read as it lies.

    Args:
        rounds: how often each is timed.
        workers: workers; all usable cores by default.
        json: where to write the figures as well.
    """
    check_rounds(rounds)
    workers = share_cores(workers)
    rows, record = [("convolution", "copied", "read as it lies", "copied is so many times as fast")], []
    for channels, outputs, window, stride, size in _CASES:
        random = np.random.default_rng(0)
        image = random.standard_normal((1, channels, size, size), np.float32)
        weights = random.standard_normal((outputs, channels, window, window), np.float32)
        function = functools.partial(_first, weights=weights, stride=stride)
        graphs = {"copied": _graph(function, image, workers)}
        with mock.patch.object(Conv2D, "reads_well", return_value=True):
            graphs["as it lies"] = _graph(function, image, workers)
        copied, as_it_lies = (graph.run(image)[0] for graph in graphs.values())
        if np.abs(copied - as_it_lies).max() > 1e-4 * np.abs(copied).max():
            raise AspenError(f"the first convolution of {channels} channels to {outputs} gives two results; report it")
        timings = interleaved({name: functools.partial(graph.run, image) for name, graph in graphs.items()}, rounds)
        first, second = (timing.minimum for timing in timings.values())
        name = f"{window}x{window}/{stride} {size}x{size}x{channels} to {outputs}"
        rows.append((name, duration(first), duration(second), f"{second / first:.2f}"))
        record.append({"convolution": name, **{side: timing.to_json() for side, timing in timings.items()}})
    print("\n".join(aligned(rows)))
    if json is not None:
        write_record(json, {"layouts": record})
    return 0


def _first(x: Any, weights: np.ndarray, stride: int) -> Any:
    numbers = ("NCHW", "OIHW", "NHWC")
    return jax.nn.relu(lax.conv_general_dilated(x, jnp.asarray(weights), (stride, stride), "SAME", dimension_numbers=numbers))


def _graph(function: Any, image: np.ndarray, workers: int) -> TileGraph:
    (part,) = frontend.trace(jax.make_jaxpr(function)(image)).parts
    return apu.build(run_passes(part, _WITHOUT), workers, apu.Machine.here(workers))
