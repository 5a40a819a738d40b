"""Who takes part. Each side starts from a prepared model and gives a function that runs it, and waits for what comes out."""
# pyright: reportMissingImports=false
# Most sides are optional, also where types are checked.

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from aspen_jax import aspen
from aspen_jax.report.cores import share_cores
from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.network.layout import to_nchw

Run = Callable[[], Sequence[Any]]  # the outputs, each something that numpy.asarray takes

ASPEN, JIT, TENSORFLOW = "aspen", "jax.jit", "TensorFlow"


@dataclasses.dataclass(frozen=True)
class Side:
    """A runtime that is compared.

    Attributes:
        start: makes the model ready for that number of threads; imports what it needs.
        packages: names to import, and by which name pip knows each.
        nchw: whether images have their channels before the pixels.
        onnx: whether it reads the ONNX model.
    """

    start: Callable[[Prepared, int], Run]
    packages: dict[str, str]
    nchw: bool = True
    onnx: bool = False

    def remedy(self) -> str | None:
        """What to install, or None if nothing is missing."""
        missing = [pip for name, pip in self.packages.items() if importlib.util.find_spec(name) is None]
        return f"pip install {' '.join(missing)}" if missing else None

    def version(self) -> str:
        """The version of the side's first package, once that is imported."""
        return getattr(sys.modules[next(iter(self.packages))], "__version__", "").partition("-")[0]


def _jit(prepared: Prepared, threads: int) -> Run:
    share_cores(threads)
    apply = jax.jit(in_jax(prepared.network))
    params, inputs = jax.tree.map(jax.numpy.asarray, (prepared.params, prepared.inputs))
    return lambda: jax.tree.leaves(jax.block_until_ready(apply(params, *inputs)))


def _aspen(prepared: Prepared, threads: int) -> Run:
    share_cores(threads)
    params, inputs = jax.tree.map(jax.numpy.asarray, (prepared.params, prepared.inputs))
    # Closed over: weights are constants, as they are for all peers that freeze a model or read it from a file.
    apply = jax.jit(aspen(functools.partial(in_jax(prepared.network), params)))
    return lambda: jax.tree.leaves(jax.block_until_ready(apply(*inputs)))


def _in(module: str, name: str) -> Callable[[Prepared, int], Run]:
    """A side of a module that imports its library at once, so it is imported only where the side starts."""

    def start(prepared: Prepared, threads: int) -> Run:
        return getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)(prepared, threads)

    return start


def _onnx_runtime(prepared: Prepared, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(prepared.onnx, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((what.name for what in session.get_inputs()), map(to_nchw, prepared.inputs), strict=True))
    return lambda: session.run(None, feeds)


def _openvino(prepared: Prepared, threads: int) -> Run:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 where the machine has it
    }
    request = openvino.compile_model(prepared.onnx, "CPU", options).create_infer_request()
    inputs = [to_nchw(x) for x in prepared.inputs]
    return lambda: list(request.infer(inputs, share_inputs=True, share_outputs=True).values())


def _tvm(prepared: Prepared, threads: int) -> Run:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    # Untuned, with the pipeline that needs no search: tuning takes hours a model.
    device: Any = tvm.cpu()
    model: Any = onnx.load(prepared.onnx)
    compiled = tvm.compile(from_onnx(model, keep_params_in_input=False), target=tvm.target.Target.from_device(device))
    machine = relax.VirtualMachine(compiled, device)
    inputs = [tvm.runtime.tensor(to_nchw(x)) for x in prepared.inputs]

    def run() -> Sequence[Any]:
        outputs = machine["main"](*inputs)
        return [output.numpy() for output in ([outputs] if hasattr(outputs, "numpy") else outputs)]

    return run


_TORCH = {"torch": "torch"}
_TENSORFLOW = {"tensorflow": "tensorflow"}

SIDES: dict[str, Side] = {
    ASPEN: Side(_aspen, {"aspen_jax": "aspen_jax"}, nchw=False),
    JIT: Side(_jit, {"jax": "jax"}, nchw=False),
    "torch eager": Side(_in("torch_sides", "eager"), _TORCH),
    "torch.compile": Side(_in("torch_sides", "compiled"), _TORCH),
    "TorchScript": Side(_in("torch_sides", "scripted"), _TORCH),
    TENSORFLOW: Side(_in("tensorflow_sides", "graph"), _TENSORFLOW, nchw=False),
    "TensorFlow XLA": Side(_in("tensorflow_sides", "xla"), _TENSORFLOW, nchw=False),
    "ONNX Runtime": Side(_onnx_runtime, {"onnxruntime": "onnxruntime", "onnx": "onnx"}, onnx=True),
    "OpenVINO": Side(_openvino, {"openvino": "openvino", "onnx": "onnx"}, onnx=True),
    "TVM": Side(_tvm, {"tvm": "apache-tvm", "onnx": "onnx"}, onnx=True),
}
