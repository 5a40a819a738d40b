"""aspen and XLA: a row compiled, timed, and its outputs compared. Each step is a process of its own."""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import AspenError
from aspen_jax.ir.program import Value
from aspen_jax.lowering.compile import Compiled, Part
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda.code.image import Code, compile_ops
from aspen_jax.targets.cuda.device import architecture
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.tuning import gpu, sides
from benchmarks.child import serve
from benchmarks.gpu.lock import timing
from benchmarks.gpu.networks import (
    REFERENCE,
    compiled_for_cuda,
    jaxpr_of,
    largest_error,
    outputs_on_cpu,
    read_outputs,
    save_outputs,
)
from benchmarks.gpu.row import Row
from benchmarks.zoo.model import Model

# By how much of the largest output a side may be off: float32 is rounded to TF32 in products, bfloat16 after every op. A network
# that amplifies roundings may be off further, if XLA is as well.
_TOLERANCE = {"float32": 1e-2, "bfloat16": 6e-2}
_OF_XLAS = 1.5
_LONGEST_NAME = 60


def measure(what: str, *words: str) -> Any:
    """A step: "about", "compile", "time", "errors" or "once"; for the words see the functions."""
    return {"about": _about, "compile": _compile, "time": _time, "errors": _errors, "once": _once}[what](*words)


def _about() -> dict[str, Any]:
    """The GPU, as JAX sees it.

    Raises:
        AspenError: there is none.
    """
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError as error:
        without = "--compile-only compiles models and programs into the cache without one"
        raise AspenError(f"JAX has no GPU here ({error}); install jax[cuda13] where there is one; {without}") from error
    platform = " ".join(device.client.platform_version.split())
    return {"name": device.device_kind, "architecture": architecture(), "platform": platform, "cupy": _version("cupy-cuda13x")}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compile(row: str) -> dict[str, Any]:
    """The code of a row into the cache; its ops, each of which is a launch."""
    start = time.perf_counter()
    _, compiled, codes, seconds = _ready(row)
    built = time.perf_counter() - start - seconds
    return {
        "ops": sum(len(part.program.ops) for part in compiled.parts),
        "tiles": sum(part.graph.num_tiles for part in compiled.parts),
        "build_s": built,
        "nvrtc_s": seconds,
        "kernels": [item for number, part in enumerate(compiled.parts) for item in _kernels(number, part, codes[number])],
    }


def _ready(row: str) -> tuple[Model, Compiled, list[Code], float]:
    """The model of a row, compiled for the GPU, the code of its parts, and the seconds that NVRTC took."""
    given = Row.of(row)
    model = given.cast(given.build())
    compiled = compiled_for_cuda(jaxpr_of(model))
    start = time.perf_counter()
    codes = [compile_ops(part.program.ops, architecture(), part.graph) for part in compiled.parts]
    return model, compiled, codes, time.perf_counter() - start


def _once(row: str) -> None:
    """Each launch of a row once, in order: for a profiler that is wrapped around the process."""
    model, compiled, codes, _ = _ready(row)
    _by_device(compiled, codes, Executor.STREAM, jax.tree.leaves(model.arguments[1:]), 0)


def _kernels(number: int, part: Part, code: Code) -> list[dict[str, Any]]:
    """The op of each launch, the first one of several, in the order of launches; and which kernel of the code it runs."""
    tiles = np.bincount(part.graph.tile_ops, minlength=len(part.program.ops)).tolist()
    num_ops = Counter(code.launched_with.tolist())
    return [
        {
            "part": number,
            "op": op.family.name,
            "ops": num_ops[first],
            "kernel": kernel,
            "output": list(op.output.shape),
            "dtype": op.output.dtype.name,
            "inputs": [list(operand.shape) for operand in op.inputs[:3]],
            "name": op.name[-_LONGEST_NAME:],
            "tiles": tiles[first] * num_ops[first],
        }
        for first, (op, kernel) in enumerate(zip(part.program.ops, code.kernels.tolist(), strict=True))
        if first in num_ops
    ]


def _time(row: str, rounds: str, outputs: str) -> dict[str, Any]:
    """A row by each executor alone and under `jax.jit`, in microseconds; medians.

    Args:
        row: its words.
        rounds: of ten runs by the device's events; calls by the host's clock are twice as many.
        outputs: a file for what each side gives.
    """
    model, compiled, codes, _ = _ready(row)
    inputs = jax.tree.leaves(model.arguments[1:])
    found: dict[str, dict[str, float]] = {}
    given_by: dict[str, Sequence[Any]] = {}
    with timing():
        for executor in (Executor.GRAPH, Executor.STREAM):
            name = executor.name.lower()
            given_by[f"{name} by device"], found[f"{name} by device"] = _by_device(compiled, codes, executor, inputs, int(rounds))
        functions = sides(jaxpr_of(model), Choices(), jax.device_put(inputs, gpu()))
        given_by |= {name: [np.asarray(item) for item in run()] for name, run in functions.items()}
        found |= {name: _by_call(run, 2 * int(rounds)) for name, run in functions.items()}
    save_outputs(Path(outputs), given_by)
    return found


def _by_device(
    compiled: Compiled, codes: Sequence[Code], executor: Executor, inputs: Sequence[Any], rounds: int
) -> tuple[list[np.ndarray], dict[str, float]]:
    """The outputs, and what a run takes: by the device's events, back to back, and until the host has given it to the device."""
    values = {**dict(compiled.trace.constants), **dict(zip(compiled.trace.inputs, map(np.asarray, inputs), strict=True))}
    device = host = 0.0
    for part, code in zip(compiled.parts, codes, strict=True):
        run = DeviceRun(part.graph, code, executor)
        operands = [values[value] for value in part.inputs]
        values.update(zip(part.outputs, run.run(*operands), strict=True))
        if rounds:
            times = run.timed(*operands, rounds=rounds)[1]
            device += statistics.median(times.device)
            host += statistics.median(times.host)
    outputs = [np.asarray(values[item] if isinstance(item, Value) else item) for item in compiled.trace.outputs]
    return outputs, {"device_us": 1e6 * device, "host_us": 1e6 * host}


def _by_call(run: Callable[[], Any], calls: int) -> dict[str, float]:
    """What a call takes alone until its results are ready, and until it returns; and among calls that are given ahead."""
    for _ in range(3):
        jax.block_until_ready(run())
    total, dispatched = [], []
    for _ in range(calls):
        start = time.perf_counter()
        results = run()
        returned = time.perf_counter()
        jax.block_until_ready(results)
        total.append(time.perf_counter() - start)
        dispatched.append(returned - start)
    start = time.perf_counter()
    results = None
    for _ in range(calls):
        results = run()
    jax.block_until_ready(results)
    together = time.perf_counter() - start
    return {
        "call_us": 1e6 * statistics.median(total),
        "dispatched_us": 1e6 * statistics.median(dispatched),
        "back_to_back_us": 1e6 * together / calls,
    }


def _errors(row: str, outputs: str, expected: str) -> dict[str, Any]:
    """How far each side is from float32 on the CPU, as a share of the largest output, and aspen's from XLA's on the GPU.

    Args:
        row: its words.
        outputs: the file of the sides' outputs.
        expected: a file for what float32 gives on the CPU.
    """
    given = Row.of(row)
    exact = given.build()
    reference = outputs_on_cpu(exact)
    save_outputs(Path(expected), {REFERENCE: reference})
    found = read_outputs(Path(outputs))
    beside = {side: largest_error(items, found["xla"]) for side, items in found.items() if side != "xla"}
    if given.dtype != "float32":
        found["xla on the CPU"] = outputs_on_cpu(given.cast(exact))
    errors = {side: largest_error(items, reference) for side, items in found.items()}
    allowed = max(_TOLERANCE[given.dtype], _OF_XLAS * errors["xla"])
    wrong = [side for side in beside if not errors[side] <= allowed]
    return {"against float32 on the CPU": errors, "against xla": beside, "allowed": allowed, "wrong": wrong}


if __name__ == "__main__":
    serve(measure)
