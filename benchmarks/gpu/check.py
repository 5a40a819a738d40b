"""What a machine with a GPU must show: every kernel right, every executor right, then kernels beside a vendor's libraries."""

from __future__ import annotations

import functools
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from aspen_jax import apu
from aspen_jax.errors import AspenError
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.random_array import random_array
from aspen_jax.ops.attention import ATTENTION, parts_of
from aspen_jax.ops.attention_slices import ATTENTION_SLICES, attention_of
from aspen_jax.ops.opcodes import narrowing
from aspen_jax.ops.reference import evaluate, op_inputs, results_of
from aspen_jax.ops.rows import RowsAttrs
from aspen_jax.targets.cuda.code.image import compile_ops, distinct
from aspen_jax.targets.cuda.code.kernel import UnsupportedOp
from aspen_jax.targets.cuda.device import architecture
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from benchmarks import zoo
from benchmarks.child import measure_in_child
from benchmarks.gpu.kernel_table import kernels_table
from benchmarks.gpu.networks import compiled_for_cuda, jaxpr_of, on_cpu
from benchmarks.gpu.networks import error as error_of
from benchmarks.gpu.row import DType
from benchmarks.in_float64 import all_in_float64, in_float64
from benchmarks.kernel_cases import GPU_CASES, KernelCase
from benchmarks.options import Models, Sizes
from benchmarks.record import Record
from benchmarks.zoo.model import Model, Size

Check = Literal["kernels", "executors", "table", "sanitizer"]

# By how much of the largest output a whole network may be off in float32, whose products round their inputs to TF32 unless more
# is asked for, and in 16 bits, to which it rounds after every op.
_NETWORK, _NARROW_NETWORK = 1e-2, 6e-2
# What rounding to nearest adds at most, as a share of the number. Adding in float32 is counted double, because tensor cores cut
# off.
_UNITS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_TF32, _ADDING = 2.0**-11, 2.0**-23
# How far the largest of many sums of roundings may be from a usual one.
_MARGIN = 2.0
_ATTENTION = ("attention", "attention_slices")
_PRODUCTS = ("conv2d", "conv2d_slices", "matmul", *_ATTENTION)

_TOOLS = ("memcheck", "racecheck")


def gpu_check(
    models: Models = ("resnet50", "mobilenet_v2", "vgg16", "bert-base", "gpt2-decode"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    only: tuple[Check, ...] = ("kernels", "executors", "table", "sanitizer"),
    dtypes: tuple[DType, ...] = ("float32", "bfloat16"),
    rounds: int = 20,
    minutes: float = 9.5,
    json: Path = Path("gpu_check.json"),
) -> int:
    """Kernels and executors on the first GPU against a reference on the CPU; kernels beside cuBLAS and cuDNN.

    Results go into a file. What it holds already is not done again, but for what was absent: call the command again to go on.
    Kernels are timed by the device's events, beside PyTorch and CuPy. Medians count. `gpu` times models.

    Args:
        models: names in benchmarks/zoo/catalogue.py.
        size: of the inputs.
        only: what to do.
        dtypes: of parameters, inputs and all between them.
        rounds: how often each side is timed.
        minutes: nothing new is begun after so many.
        json: where the results are kept.
    """
    found = _Results(json, time.monotonic() + 60 * minutes)

    @functools.cache
    def model(name: str, dtype: str) -> Model:
        return zoo.build(name, size).calibrated() if dtype == "float32" else model(name, "float32").cast(dtype)

    for check, do in (("kernels", _kernels), ("executors", functools.partial(_executors, rounds=rounds))):
        for name, dtype in itertools.product(models, dtypes if check in only else ()):
            found.of(f"{check}/{name}/{size.batch}/{dtype}", lambda do=do, own=(name, dtype): do(model(*own)))
    if "table" in only:
        for dtype in dtypes:
            for library in ("torch", "cupy"):
                found.of(
                    f"{library}/{dtype}",
                    lambda library=library, dtype=dtype: _library(library, dtype, rounds, found.seconds_left),
                )
            for case in GPU_CASES:
                found.of(f"table/{dtype}/{case.name}", lambda case=case, dtype=dtype: _case(case, dtype, rounds))
        print("\n".join(kernels_table(found.entries, GPU_CASES, dtypes)))
    if "sanitizer" in only:
        for tool in _TOOLS:
            found.of(f"sanitizer/{tool}", lambda tool=tool: _sanitizer(tool, found.seconds_left))
    if found.skipped:
        print(f"time is over; call it again for {', '.join(found.skipped)}")
    return 0 if not found.skipped and all(item.get("right", True) for item in found.entries.values()) else 1


class _Results:
    """Entries by name, on disk after each; nothing is begun after `end`."""

    def __init__(self, path: Path, end: float):
        self._record = Record(path, "gpu-check", {"architecture": architecture()})
        self.entries = self._record.results
        self._end = end
        self.skipped: list[str] = []

    @property
    def seconds_left(self) -> float:
        return max(1.0, self._end - time.monotonic())

    def of(self, name: str, do: Callable[[], dict[str, Any]]) -> None:
        if name not in self.entries or "absent" in self.entries[name]:
            if time.monotonic() > self._end:
                self.skipped.append(name)
                return
            try:
                result = do()
            except (AspenError, UnsupportedOp) as error:
                result = {"right": False, "error": str(error)}
            self._record.add(name, result)
        print(f"{name}: {json.dumps(self.entries[name])}", flush=True)


def _kernels(model: Model) -> dict[str, Any]:
    return ops_against_float64([op for part in compiled_for_cuda(jaxpr_of(model)).parts for op in part.program.ops])


def ops_against_float64(ops: Sequence[Op]) -> dict[str, Any]:
    """Each op that has code of its own, alone, on random inputs: how far off at most, also as a share of what is allowed."""
    wrong = []
    firsts = distinct(ops).ops
    worst = nearest = 0.0
    for op in tqdm(firsts, unit="kernel"):
        values = tuple(dict.fromkeys(operand.value for operand in op.inputs))
        alone = Program(values, (), (op,), tuple(map(Operand.whole, op.outputs)))
        arrays = [random_array(value, number) for number, value in enumerate(values)]
        graph = apu.build(alone, NUM_BLOCKS, Gpu())
        ours = DeviceRun(graph, compile_ops([op], architecture()), Executor.STREAM).run(*arrays)
        for number, (own, exact) in enumerate(zip(ours, _exact(op, dict(zip(values, arrays, strict=True))), strict=True)):
            error, allowed = error_of(own, exact), _tolerance(op, op.outputs[number])
            worst, nearest = max(worst, error), max(nearest, error / allowed)
            if not error <= allowed:
                what = f"{op.family.name} {op.name} {list(own.shape)}" + (f", output {number}" if op.further else "")
                wrong.append(f"{what}: {error:.1e}, where {allowed:.1e} is allowed")
    return {"right": not wrong, "kernels": len(firsts), "worst": worst, "of_allowed": nearest, "wrong": wrong}


def _exact(op: Op, values: dict[Value, np.ndarray]) -> list[np.ndarray]:
    return all_in_float64(functools.partial(results_of, op), *op_inputs(op, values))


def _tolerance(op: Op, output: Value) -> float:
    """How far one of a kernel's outputs may be off from float64, as a share of the largest element.

    That is what its roundings come to, and a margin.
    Inputs are rounded where tensor cores multiply float32 in TF32, and attention's weights to the dtype of its values; sums of n
    terms round n times, as often up as down; what is rounded in the end, or on the way, may fall on the other side.
    """
    whole = np.array([[(0, extent) for extent in op.output.shape]], np.int64).reshape(1, -1, 2)
    terms = max(1.0, float(np.sum(op.family.work(op, whole).flops)) / max(op.output.size, 1))
    inputs = 0.0
    if op.family.name in _PRODUCTS:
        narrow = op.inputs[0].dtype.name
        if narrow == "float32":
            inputs = 0.0 if op.exact else _TF32
        elif op.family.name in _ATTENTION:
            inputs = _UNITS[narrow]
    rounded = max(_UNITS.get(name, 0.0) for name in (output.dtype.name, *_roundings(op)))
    return _MARGIN * (inputs + _ADDING * math.sqrt(terms)) + 2 * rounded


def _roundings(op: Op) -> Iterator[str]:
    """Dtypes that the op's programs round to."""
    whole = attention_of(op) if op.family is ATTENTION_SLICES else op
    parts = parts_of(whole) if whole.family is ATTENTION else (op,)
    programs = [part.program for part in parts]
    programs += [stage.program for part in parts if isinstance(part.attrs, RowsAttrs) for stage in part.attrs.rows.stages]
    names = {instruction.opcode for program in programs if program is not None for instruction in program.instructions}
    yield from (dtype for dtype in ("bfloat16", "float16") if narrowing(np.dtype(dtype)) in names)


def _executors(model: Model, rounds: int) -> dict[str, Any]:
    """Whole graphs, each executor a few times: the same bits every time, and close to the CPU's. Then timed by events."""
    errors: dict[str, float] = {}
    seconds: dict[str, float] = {}
    host: dict[str, float] = {}
    steady = True
    for part in compiled_for_cuda(jaxpr_of(model)).parts:
        arrays = [random_array(value) for value in part.inputs]
        code = compile_ops(part.program.ops, architecture(), part.graph)
        expected = on_cpu(evaluate, part.program, *arrays)
        first = None
        for name, executor, captured in (("stream", 0, False), ("graph", 1, False), ("captured", 0, True)):
            run = DeviceRun(part.graph, code, Executor(executor))
            for _ in range(3):
                results = run.run(*arrays, captured=captured)
                first = results if first is None else first
                steady &= all(np.array_equal(ours, other, equal_nan=True) for ours, other in zip(results, first, strict=True))
                error = max(error_of(ours, theirs) for ours, theirs in zip(results, expected, strict=True))
                errors[name] = max(error, errors.get(name, 0.0))
            if not captured:
                timed = run.timed(*arrays, rounds=rounds)[1]
                seconds[name] = seconds.get(name, 0.0) + statistics.median(timed.device)
                host[name] = host.get(name, 0.0) + statistics.median(timed.host)
    right = steady and max(errors.values()) <= _tolerance_of(model)
    return {"right": right, "steady": steady, "errors": errors, "seconds": seconds, "host": host}


def _tolerance_of(model: Model) -> float:
    narrow = any(item.dtype.itemsize == 2 for item in jax.tree.leaves(model.params))
    return _NARROW_NETWORK if narrow else _NETWORK


def _library(library: str, dtype: str, rounds: int, timeout: float) -> dict[str, Any]:
    """Products, convolutions and attention by a vendor's library, in a process of its own; or why not."""
    words = (library, dtype, str(rounds))
    try:
        return {"seconds": measure_in_child("benchmarks.gpu.peers", words, {"JAX_PLATFORMS": "cpu"}, timeout)}
    except AspenError as error:
        return {"absent": str(error)}


def _case(case: KernelCase, dtype: str, rounds: int) -> dict[str, Any]:
    """A product, a convolution or attention by our kernels, as a CUDA graph."""
    jaxpr = jax.make_jaxpr(case.function)(*(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in case.shapes))
    (part,) = compiled_for_cuda(jaxpr).parts
    arrays = [random_array(value, number) for number, value in enumerate(part.inputs)]
    ops = part.program.ops
    code = compile_ops(ops, architecture(), part.graph)
    results, seconds = DeviceRun(part.graph, code, Executor.GRAPH).timed(*arrays, rounds=rounds)
    error = error_of(results[0], in_float64(case.function, *arrays))
    return {
        "right": error <= sum(_tolerance(op, op.output) for op in ops),
        "error": error,
        "seconds": statistics.median(seconds.device),
    }


def _sanitizer(tool: str, timeout: float) -> dict[str, Any]:
    """The kernels of a small network under one of the tools of compute-sanitizer."""
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        return {"absent": "compute-sanitizer is not on PATH; it comes with the CUDA toolkit"}
    with tempfile.TemporaryDirectory() as folder:
        command = [checker, "--tool", tool, "--error-exitcode", "99", sys.executable, "-m", "benchmarks", "gpu-check"]
        command += ["--models", "squeezenet1_1", "--image-size", "40", "--only", "kernels", "--json", f"{folder}/small.json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"absent": f"{tool} was ended after {timeout:.0f} s; call it again"}
    return {"right": done.returncode == 0, "status": done.returncode, "said": (done.stdout + done.stderr)[-4000:]}
