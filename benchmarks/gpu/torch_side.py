"""PyTorch: a row in eager mode, captured into a CUDA graph, or by torch.compile. Each is a process of its own."""
# pyright: reportMissingImports=false
# PyTorch is optional, also where types are checked.

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import AspenError
from benchmarks.child import serve
from benchmarks.gpu.lock import timing
from benchmarks.gpu.networks import REFERENCE, largest_error, read_outputs
from benchmarks.gpu.row import Row

EAGER, COMPILED = "torch eager in a CUDA graph", "torch.compile"
_CALLS_A_ROUND = 10  # between two events, as for our kernels (cuda/standalone.cc)


class Absent(AspenError):
    """PyTorch is not installed, or cannot do what is asked for."""


def torch_for_gpus() -> Any:
    """PyTorch, which rounds products as JAX does on GPUs and takes the fastest algorithms.

    Raises:
        Absent: it is not installed, or sees no GPU.
    """
    if importlib.util.find_spec("torch") is None:
        raise Absent("absent: pip install torch")
    import torch

    if not torch.cuda.is_available():
        raise Absent("absent: this PyTorch sees no GPU; install one for CUDA")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    return torch


def measure(side: str, row: str, rounds: str, expected: str) -> dict[str, Any]:
    """A side's medians in microseconds, and its error as a share of the largest output.

    Args:
        side: `EAGER` or `COMPILED`.
        row: its words.
        rounds: of ten calls by the device's events; calls by the host's clock are twice as many.
        expected: the file of what float32 gives on the CPU.
    """
    torch = torch_for_gpus()
    given = Row.of(row)
    module, inputs = _on_gpu(torch, given)
    with torch.inference_mode():
        if side == COMPILED:
            compiled = torch.compile(module, mode="reduce-overhead")

            def run() -> Any:
                return compiled(*inputs)

            for _ in range(3):  # compiled, then captured
                run()
            torch.cuda.synchronize()
            with timing():
                found = _timed(torch, run, int(rounds))
            results = run()
        else:
            with timing():
                graph, results = captured(torch, lambda: module(*inputs))
                found = _timed(torch, graph.replay, int(rounds))
        error = largest_error(_arrays(results, given), read_outputs(Path(expected))[REFERENCE])
    return {**found, "error": error, "version": torch.__version__}


def _on_gpu(torch: Any, row: Row) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs, with the weights of `Row.build`; images and their maps have the channels last."""
    from benchmarks import zoo
    from benchmarks.zoo.gpt2_in_torch import decode_in_torch
    from benchmarks.zoo.network.in_torch import in_torch, inputs_in_torch
    from benchmarks.zoo.network.parameters import draw_inputs

    is_network = row.model in zoo.NETWORKS
    if is_network:
        network = zoo.describe(row.model, row.size)
        module, inputs = in_torch(network, jax.tree.map(np.array, row.build().params)), inputs_in_torch(draw_inputs(network))
    elif row.model == "gpt2-decode":
        model = row.build()
        module, inputs = decode_in_torch(model.params, model.inputs)
    else:
        raise Absent(f"absent: {row.model} is described for JAX alone")

    def placed(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(map(placed, x))
        x = x.cuda().to(getattr(torch, row.dtype)) if x.is_floating_point() else x.cuda()
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 and is_network else x

    inputs = placed(tuple(inputs))
    module = module.eval().cuda().to(getattr(torch, row.dtype))
    if any(getattr(x, "ndim", 0) == 4 for x in inputs):
        module = module.to(memory_format=torch.channels_last)
    return module, inputs


def captured(torch: Any, call: Callable[[], Any]) -> tuple[Any, Any]:
    """A CUDA graph of the call, and where a replay leaves its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a capture must not be the first call
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results


def _timed(torch: Any, run: Callable[[], Any], rounds: int) -> dict[str, float]:
    """What a call takes alone until its results are ready, and by the device's events among calls that are given ahead."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    total, device = [], []
    for _ in range(2 * rounds):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        total.append(time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        begin.record()
        for _ in range(_CALLS_A_ROUND):
            run()
        end.record()
        end.synchronize()
        device.append(begin.elapsed_time(end) / _CALLS_A_ROUND)
    return {"call_us": 1e6 * statistics.median(total), "device_us": 1e3 * statistics.median(device)}


def _arrays(results: Any, row: Row) -> list[np.ndarray]:
    """Results in the order of JAX's leaves, images with the channels last."""
    from benchmarks import zoo
    from benchmarks.zoo.network.layout import to_nhwc

    def flat(results: Any) -> list[Any]:
        return [item for part in results for item in flat(part)] if isinstance(results, (list, tuple)) else [results]

    arrays = [item.float().cpu().numpy() for item in flat(results)]
    return [to_nhwc(item) for item in arrays] if row.model in zoo.NETWORKS else arrays


if __name__ == "__main__":
    serve(measure)
