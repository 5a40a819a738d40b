"""What others make of the same work on a GPU: cuBLAS and cuDNN through PyTorch and CuPy, models by torch.compile and by XLA.

Each measurement is a process of its own (`measure_in_child`), because libraries share a GPU's memory badly.
"""
# pyright: reportMissingImports=false
# PyTorch is optional, also where types are checked.

from __future__ import annotations

import functools
import importlib.util
import os
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.errors import AspenError
from benchmarks.child import serve
from benchmarks.kernel_cases import GPU_CASES, KernelCase

# Between two events, as for our kernels (cuda/standalone.cc).
_CALLS_A_ROUND = 10


class Absent(AspenError):
    """A peer is not installed, or cannot do what is asked for."""


def measure(what: str, *words: str) -> Any:
    """Seconds: by case for "torch" and "cupy" (dtype, rounds); for the others see their functions."""
    return {"torch": _torch_kernels, "cupy": _cupy_kernels, "network": _network, "xla": _xla}[what](*words)


def _torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        raise Absent("absent: pip install torch")
    import torch

    if not torch.cuda.is_available():
        raise Absent("absent: this PyTorch sees no GPU; install one for CUDA")
    # As JAX's default precision is on GPUs; and the algorithm that is the fastest.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    return torch


def _torch_kernels(dtype: str, rounds: str) -> dict[str, float]:
    torch = _torch()
    found = {}
    with torch.no_grad():
        for case in GPU_CASES:
            call = _torch_call(torch, case, [torch.randn(s, device="cuda", dtype=getattr(torch, dtype)) for s in case.shapes])
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # a capture must not be the first call
                for _ in range(3):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(_CALLS_A_ROUND):
                    call()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            samples = []
            for _ in range(int(rounds)):
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                samples.append(1e-3 * begin.elapsed_time(end) / _CALLS_A_ROUND)
            found[case.name] = statistics.median(samples)
    return found


def _torch_call(torch: Any, case: KernelCase, operands: list[Any]) -> Callable[[], Any]:
    """A product, attention, or a convolution with the channels last, whose input is padded beforehand where sides differ."""
    if case.function is jax.nn.dot_product_attention:
        q, k, v = (item.transpose(1, 2) for item in operands)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    x, w = operands
    if case.function is jnp.matmul:
        return lambda: torch.matmul(x, w)
    assert isinstance(case.function, functools.partial)
    strides = case.function.keywords["window_strides"]
    pads = jax.lax.padtype_to_pads(x.shape[1:3], w.shape[:2], strides, "SAME")
    x, w = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    padding = [low for low, _ in pads]
    if any(low != high for low, high in pads):
        x = torch.nn.functional.pad(x, (*pads[1], *pads[0])).contiguous(memory_format=torch.channels_last)
        padding = [0, 0]
    return lambda: torch.nn.functional.conv2d(x, w, stride=strides, padding=padding)


def _cupy_kernels(dtype: str, rounds: str) -> dict[str, float]:
    if importlib.util.find_spec("cupy") is None:
        raise Absent("absent: pip install 'aspen_jax[cuda13]'")
    if dtype == "bfloat16":
        raise Absent("absent: CuPy has no bfloat16")
    os.environ["CUPY_TF32"] = "1"  # as JAX's default precision is on GPUs
    import cupy

    found = {}
    for case in GPU_CASES:
        if case.function is not jnp.matmul:
            continue
        x, w = (cupy.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype)) for shape in case.shapes)
        cupy.matmul(x, w)
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        samples = []
        for _ in range(int(rounds)):
            begin.record()
            for _ in range(_CALLS_A_ROUND):
                cupy.matmul(x, w)
            end.record()
            end.synchronize()
            samples.append(1e-3 * cupy.cuda.get_elapsed_time(begin, end) / _CALLS_A_ROUND)
        found[case.name] = statistics.median(samples)
    return found


def _network(name: str, batch: str, image_size: str, tokens: str, dtype: str, rounds: str, outputs: str) -> dict[str, float]:
    """A model of the zoo by torch.compile with CUDA graphs; float32 as JAX's default precision has it.

    Args:
        name: in the zoo.
        batch: examples.
        image_size: 0 is the network's own.
        tokens: likewise.
        dtype: of parameters, inputs and all between them.
        rounds: how often it is timed, from call to results on the device.
        outputs: a file for what it gives (.npz), images with their channels last.
    """
    torch = _torch()
    from aspen_jax.cost.timing import interleaved
    from benchmarks.models import zoo
    from benchmarks.models.gpt2_in_torch import decode_in_torch
    from benchmarks.models.model import Size
    from benchmarks.network.in_torch import in_torch, inputs_in_torch
    from benchmarks.network.layout import to_nhwc
    from benchmarks.network.parameters import calibrated, draw, draw_inputs

    size = Size(int(batch), int(image_size) or None, int(tokens) or None)
    if name == "gpt2-decode":
        model = zoo.build(name, size)
        module, inputs = decode_in_torch(model.params, model.inputs)
    elif name in zoo.NETWORKS:
        network = zoo.describe(name, size)
        module, inputs = in_torch(network, calibrated(network, draw(network))), inputs_in_torch(draw_inputs(network))
    else:
        raise Absent(f"absent: {name} is described for JAX alone")

    def placed(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(map(placed, x))
        x = x.cuda().to(getattr(torch, dtype)) if x.is_floating_point() else x.cuda()
        is_image = x.ndim == 4 and name in zoo.NETWORKS
        return x.contiguous(memory_format=torch.channels_last) if is_image else x

    inputs = placed(tuple(inputs))
    module = module.cuda().to(getattr(torch, dtype))
    if any(getattr(x, "ndim", 0) == 4 for x in inputs):
        module = module.to(memory_format=torch.channels_last)
    compiled = torch.compile(module, mode="max-autotune")

    def run() -> Any:
        results = compiled(*inputs)
        torch.cuda.synchronize()
        return results

    def flat(results: Any) -> list[Any]:
        return [item for part in results for item in flat(part)] if isinstance(results, (list, tuple)) else [results]

    with torch.no_grad():
        for _ in range(3):  # compiled, then captured
            results = run()
        arrays = [item.float().cpu().numpy() for item in flat(results)]
        np.savez(outputs, *(to_nhwc(item) if name in zoo.NETWORKS else item for item in arrays))
        timing = interleaved({"torch": lambda: (run(), None)[1]}, int(rounds))["torch"]
    return {"minimum": timing.minimum, "median": timing.median}


def _xla(name: str, batch: str, image_size: str, tokens: str, dtype: str, rounds: str) -> dict[str, float]:
    """A model of the zoo by jax.jit, with the flags that this process was given; arguments as of `_network`."""
    from aspen_jax.cost.timing import interleaved
    from benchmarks.models import zoo
    from benchmarks.models.model import Size

    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError as error:
        raise Absent(f"absent: JAX has no GPU ({error}); pip install 'aspen_jax[cuda13]'") from error
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model = zoo.build(name, Size(int(batch), int(image_size) or None, int(tokens) or None)).cast(dtype)
    inputs = jax.device_put(model.inputs, device)
    # Parameters are constants, as they are for the executors.
    run = functools.partial(jax.jit(functools.partial(model.apply, model.params)).lower(*inputs).compile(), *inputs)
    timing = interleaved({"xla": run}, int(rounds))["xla"]
    return {"minimum": timing.minimum, "median": timing.median}


if __name__ == "__main__":
    serve(measure)
