"""PyTorch's ways to run a module, and its way to ONNX."""
# pyright: reportMissingImports=false
# PyTorch is optional, also where types are checked.

from __future__ import annotations

import os
from typing import Any

os.environ["TORCHINDUCTOR_FREEZING"] = "1"  # weights are constants, which torch.compile may then reorder once; read on import

import torch

from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.network.in_torch import in_torch, inputs_in_torch
from benchmarks.zoo.network.network import Network


def eager(prepared: Prepared, threads: int) -> Any:
    module, inputs = _start(prepared, threads)
    return _run(module, inputs)


def compiled(prepared: Prepared, threads: int) -> Any:
    module, inputs = _start(prepared, threads)
    return _run(torch.compile(module), inputs)


def scripted(prepared: Prepared, threads: int) -> Any:
    module, inputs = _start(prepared, threads)
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(module, inputs))
        return _run(torch.jit.optimize_for_inference(frozen), inputs)


def export(prepared: Prepared) -> str:
    """Write the ONNX model and give what wrote it."""
    module = in_torch(prepared.network, prepared.params)
    names = list(prepared.network.inputs)
    torch.onnx.export(
        module, inputs_in_torch(prepared.inputs), prepared.onnx, input_names=names, dynamo=True, external_data=True, verbose=False
    )
    return f"exported by torch {torch.__version__}"


def _start(prepared: Prepared, threads: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    module: Any = in_torch(prepared.network, prepared.params)
    inputs = inputs_in_torch(prepared.inputs)
    if _sees_images(prepared.network):  # what PyTorch recommends for convolutions on CPUs
        return module.to(memory_format=torch.channels_last), (inputs[0].to(memory_format=torch.channels_last), *inputs[1:])
    return module, inputs


def _sees_images(network: Network) -> bool:
    return any(what.kind == "image" for what in network.inputs.values())


def _run(module: Any, inputs: tuple[torch.Tensor, ...]) -> Any:
    def run() -> Any:
        with torch.no_grad():
            outputs = module(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run
