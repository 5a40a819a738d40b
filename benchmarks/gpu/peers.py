"""What others make of the same kernels on a GPU: cuBLAS and cuDNN through PyTorch and CuPy.

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

from benchmarks.child import serve
from benchmarks.gpu.torch_side import Absent, captured, torch_for_gpus
from benchmarks.kernel_cases import GPU_CASES, KernelCase

# Between two events, as for our kernels (cuda/standalone.cc).
_CALLS_A_ROUND = 10


def measure(what: str, *words: str) -> Any:
    """Seconds by case, by "torch" or "cupy"; words are dtype and rounds."""
    return {"torch": _torch_kernels, "cupy": _cupy_kernels}[what](*words)


def _torch_kernels(dtype: str, rounds: str) -> dict[str, float]:
    torch = torch_for_gpus()
    found = {}
    with torch.no_grad():
        for case in GPU_CASES:
            call = _torch_call(torch, case, [torch.randn(s, device="cuda", dtype=getattr(torch, dtype)) for s in case.shapes])

            def calls(call: Callable[[], Any] = call) -> None:
                for _ in range(_CALLS_A_ROUND):
                    call()

            graph, _ = captured(torch, calls)
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


if __name__ == "__main__":
    serve(measure)
