"""First convolutions of NCHW networks on the CPU: their input copied to NHWC first, or read through its view."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax import apu, num_workers
from aspen_jax.frontend import trace as frontend
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ops.conv import Conv2D
from aspen_jax.passes import run_passes
from benchmarks.benchmark import Run, Table, benchmark, samples, timed
from benchmarks.options import File

# Channels, outputs, window, stride and size: of ResNet, MobileNet, VGG and a vision transformer.
_CASES = ((3, 64, 7, 2, 224), (3, 32, 3, 2, 224), (3, 64, 3, 1, 224), (3, 768, 16, 16, 224))

# Algorithms that want adjacent channels.
_WITHOUT = frozenset({"winograd", "conv_panels", "bf16x6", "strassen"})


@benchmark
def layouts(rounds: int = 30, workers: int | None = None, json: File = None) -> Run:
    """First convolutions of an image in NCHW: copied to NHWC by an op of its own, and read as it lies.

    Args:
        rounds: how often each is timed.
        workers: workers; all usable cores by default.
        json: where to write the figures as well.
    """
    table = Table("", {"convolution": "", "copied": "s", "read as it lies": "s", "copied is so many times as fast": ".2f"})
    for channels, outputs, window, stride, size in _CASES:
        random = np.random.default_rng(0)
        image = random.standard_normal((1, channels, size, size), np.float32)
        weights = random.standard_normal((outputs, channels, window, window), np.float32)
        function = functools.partial(_first, weights=weights, stride=stride)
        graphs = {"copied": _graph(function, image)}
        with mock.patch.object(Conv2D, "reads_well", return_value=True):
            graphs["as it lies"] = _graph(function, image)
        name = f"{window}x{window}/{stride} {size}x{size}x{channels} to {outputs}"
        timings = timed(name, {side: functools.partial(graph.run, image) for side, graph in graphs.items()}, rounds)
        first, second = (timing.minimum for timing in timings.values())
        table.add(name, first, second, second / first, **samples(timings))
    yield table


def _first(x: Any, weights: np.ndarray, stride: int) -> Any:
    numbers = ("NCHW", "OIHW", "NHWC")
    return jax.nn.relu(lax.conv_general_dilated(x, jnp.asarray(weights), (stride, stride), "SAME", dimension_numbers=numbers))


def _graph(function: Any, image: np.ndarray) -> TileGraph:
    (part,) = frontend.trace(jax.make_jaxpr(function)(image)).parts
    return apu.build(run_passes(part, _WITHOUT), num_workers(), apu.Machine.here(num_workers()))
