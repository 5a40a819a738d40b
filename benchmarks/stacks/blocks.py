"""BrainSlug's figure 10: 1 to 40 blocks of a pool, batch normalisation and ReLU, in stacks of 1, 5 and any number of steps."""

from __future__ import annotations

import dataclasses
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.cost.timing import Timing, interleaved
from aspen_jax.errors import AspenError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from benchmarks.policies import moved_bytes
from benchmarks.stacks.graphs import graph_of
from benchmarks.zoo.blocks import RELU, max_pool
from benchmarks.zoo.network.in_jax import Params
from benchmarks.zoo.network.layers import BatchNorm
from benchmarks.zoo.network.layout import to_nchw, to_nhwc
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.network.parameters import draw

STEPS: dict[str, int | None] = {"1 step": 1, "5 steps": 5, "any": None}
ONNX_RUNTIME = "ONNX Runtime"
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40)
_POLICY = "shallow first"


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of a number of blocks.

    Attributes:
        blocks: how many.
        timings: by the steps a stack may have, and of ONNX Runtime where it is installed.
        estimated: bytes that all tiles of these graphs move by the graph's own count.
        counted: by KiB of a cache, the same of the graph for one worker whose stacks are made for it.
        moved: of that graph, bytes between the cache and memory, by cachegrind.
    """

    blocks: int
    timings: dict[str, Timing]
    estimated: dict[str, float]
    counted: dict[int, dict[str, float]]
    moved: dict[int, dict[str, int]]


def network_of(blocks: int, extent: int, channels: int) -> Network:
    """A network of `blocks` blocks on an image."""
    net = Network()
    x = net.input("image", (1, extent, extent, channels))
    for _ in range(blocks):
        x = net(x, max_pool(3, 1, 1), BatchNorm(), RELU)
    return net.returns(x)


def measure(
    blocks: int, extent: int, channels: int, rounds: int, cache_kib: Sequence[int], valgrind: str, program: Path | None
) -> Row:
    """Check that all give the same, then time them in turns and count bytes.

    Args:
        blocks: how many.
        extent: height and width of the image.
        channels: of the image.
        rounds: how often each is timed.
        cache_kib: sizes of the caches to count for.
        valgrind: its path.
        program: `cpp/policies.cc`, built; needed where bytes are counted.

    Raises:
        AspenError: results differ.
    """
    workers = share_cores()
    network = network_of(blocks, extent, channels)
    params = draw(network)
    image = np.random.default_rng(0).standard_normal((1, extent, extent, channels), np.float32)
    machine = dataclasses.replace(Machine.here(workers), last_cache_bytes=0)
    graphs = {name: graph_of(network, params, [image], machine, steps, workers) for name, steps in STEPS.items()}
    sides: dict[str, Callable[[], Any]] = {name: lambda graph=graph: graph.run(image)[0] for name, graph in graphs.items()}
    expected = sides["1 step"]()
    if any(sides[name]().tobytes() != expected.tobytes() for name in STEPS):
        raise AspenError(f"{blocks} blocks: stacks give other bits than single steps")
    peer = _onnx_runtime(network, params, image, workers)
    if peer is not None:
        if largest_difference(to_nhwc(peer()), expected) > TOLERANCE:
            raise AspenError(f"{blocks} blocks: {ONNX_RUNTIME} gives another result")
        sides[ONNX_RUNTIME] = peer
    timings = interleaved(sides, rounds)
    estimated = {name: graph.stats()["bytes"] for name, graph in graphs.items()}
    counted, moved = {}, {}
    for kib in cache_kib:
        machine = dataclasses.replace(Machine.here(1), cache_bytes=kib << 10, last_cache_bytes=0)
        graphs = {name: graph_of(network, params, [image], machine, steps, 1) for name, steps in STEPS.items()}
        counted[kib] = {name: graph.stats()["bytes"] for name, graph in graphs.items()}
        moved[kib] = {name: _moved(graph, kib, valgrind, program) for name, graph in graphs.items()}
    return Row(blocks, timings, estimated, counted, moved)


def _moved(graph: TileGraph, kib: int, valgrind: str, program: Path | None) -> int:
    assert program is not None
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "graph"
        graph.save(file)
        return moved_bytes(valgrind, program, file, _POLICY, kib << 10)


def _onnx_runtime(network: Network, params: Params, image: np.ndarray, threads: int) -> Callable[[], Any] | None:
    """Build a call of the network by ONNX Runtime, or None where that is not installed."""
    if any(importlib.util.find_spec(package) is None for package in ("onnx", "onnxruntime")):
        return None
    import onnxruntime  # pyright: ignore[reportMissingImports]

    from benchmarks.zoo.network.in_onnx import write_onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        write_onnx(network, params, path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: to_nchw(image)}
    return lambda: session.run(None, feeds)[0]
