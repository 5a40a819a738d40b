"""What a machine with a GPU must show: every kernel right, every executor right, then times. Nothing is built but kernels."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from tqdm import tqdm

from aspen_jax import apu, aspen
from aspen_jax.choices import Choices
from aspen_jax.compile import Part, compile_jaxpr
from aspen_jax.cuda.call import architecture, cuda_options
from aspen_jax.cuda.device_run import DeviceRun
from aspen_jax.cuda.executor import EXECUTOR_VARIABLE, Executor
from aspen_jax.cuda.image import compile_ops, distinct
from aspen_jax.cuda.machine import NUM_BLOCKS, Gpu
from aspen_jax.cuda.source import UnsupportedOp
from aspen_jax.errors import AspenError, InputError
from aspen_jax.program import Op, Operand, Program
from aspen_jax.reference import evaluate
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import interleaved
from aspen_jax.tuning import random_array
from benchmarks.models import zoo
from benchmarks.models.model import Model, Size
from benchmarks.options import Models, Sizes

Check = Literal["kernels", "executors", "times"]

# By how much of the largest output a result may be off: products round their inputs to TF32 unless more is asked for.
_TF32, _FLOAT32, _NARROW = 2e-3, 1e-5, 1e-2


def gpu(
    models: Models = ("resnet50", "mobilenet_v2", "vgg16", "bert-base", "gpt2-decode"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    only: tuple[Check, ...] = ("kernels", "executors", "times"),
    rounds: int = 20,
    json: Path = Path("gpu_check.json"),
) -> int:
    """Kernels and executors on the first GPU against a reference on the CPU, then models beside jax.jit; results go into a file.

    What the file holds already is not done again, so that it can be interrupted. For the memory checker run it under
    `compute-sanitizer` with `--only kernels`.

    Args:
        models: names in benchmarks/models/zoo.py.
        size: of the inputs.
        only: what to do.
        rounds: how often each side is timed.
        json: where the results are kept.
    """
    found = _Results(json)
    for name in models:
        model = zoo.build(name, size).calibrated()
        if "kernels" in only:
            found.of(f"kernels/{name}/{size.batch}", lambda model=model: _kernels(model))
        if "executors" in only:
            found.of(f"executors/{name}/{size.batch}", lambda model=model: _executors(model))
        if "times" in only:
            found.of(f"times/{name}/{size.batch}", lambda model=model: _times(model, rounds))
    return 0 if all(item.get("right", False) for item in found.entries.values()) else 1


class _Results:
    """Entries by name, on disk after each."""

    def __init__(self, path: Path):
        self._path = path
        try:
            self.entries: dict[str, dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else {}
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{str(path)!r} holds no results of this check ({error}); delete it or name another file") from error

    def of(self, name: str, do: Callable[[], dict[str, Any]]) -> None:
        if name not in self.entries:
            try:
                self.entries[name] = do()
            except (AspenError, UnsupportedOp) as error:
                self.entries[name] = {"right": False, "error": str(error)}
            write_record(self._path, {"architecture": architecture(), "results": self.entries})
        print(f"{name}: {json.dumps(self.entries[name])}", flush=True)


def _parts(model: Model) -> tuple[Part, ...]:
    jaxpr = jax.make_jaxpr(functools.partial(model.apply, model.arguments[0]))(*model.arguments[1:])
    return compile_jaxpr(jaxpr, cuda_options(Choices(strict=True, device="cuda"))).parts


def _kernels(model: Model) -> dict[str, Any]:
    """Each op of a model that has code of its own, alone, on random inputs."""
    wrong = []
    firsts, _ = distinct([op for part in _parts(model) for op in part.program.ops])
    worst = 0.0
    for op in tqdm(firsts, unit="kernel"):
        values = tuple(dict.fromkeys(operand.value for operand in op.inputs))
        alone = Program(values, (), (op,), (Operand.whole(op.output),))
        arrays = [random_array(value) for value in values]
        graph = apu.build(alone, NUM_BLOCKS, Gpu())
        (ours,) = DeviceRun(graph, compile_ops([op], architecture()), Executor.STREAM).run(*arrays)
        (theirs,) = _on_cpu(evaluate, alone, *arrays)
        error = _error(ours, theirs)
        worst = max(worst, error)
        if not error <= _tolerance(op):
            wrong.append(f"{op.family.name} {op.name} {list(op.output.shape)}: {error:.1e}")
    return {"right": not wrong, "kernels": len(firsts), "worst": worst, "wrong": wrong}


def _tolerance(op: Op) -> float:
    if any(operand.dtype.itemsize == 2 for operand in op.inputs):
        return _NARROW
    return _TF32 if op.family.name in ("conv2d", "matmul", "attention") and not op.exact else _FLOAT32


def _executors(model: Model) -> dict[str, Any]:
    """Whole graphs, each executor a few times: the same bits every time, and close to the CPU's."""
    errors: dict[str, float] = {}
    steady = True
    for part in _parts(model):
        arrays = [random_array(value) for value in part.inputs]
        code = compile_ops(part.program.ops, architecture())
        expected = _on_cpu(evaluate, part.program, *arrays)
        first = None
        for name, executor, captured in (("stream", 0, False), ("graph", 1, False), ("captured", 0, True)):
            run = DeviceRun(part.graph, code, Executor(executor))
            for _ in range(3):
                results = run.run(*arrays, captured=captured)
                first = results if first is None else first
                steady &= all(np.array_equal(ours, other, equal_nan=True) for ours, other in zip(results, first, strict=True))
                error = max(_error(ours, theirs) for ours, theirs in zip(results, expected, strict=True))
                errors[name] = max(error, errors.get(name, 0.0))
    return {"right": steady and max(errors.values()) <= _NARROW, "steady": steady, "errors": errors}


def _times(model: Model, rounds: int) -> dict[str, Any]:
    """A model under JAX on the GPU: by XLA and by each executor, in turns, from call to results on the device."""
    arguments = jax.device_put(model.arguments, jax.local_devices(backend="cuda")[0])
    sides: dict[str, Callable[[], Any]] = {}
    for name in ("xla", "stream", "graph"):
        with _executor(name):
            function = jax.jit(aspen(functools.partial(model.apply, arguments[0])))
            compiled = function.lower(*arguments[1:]).compile()
        sides[name] = functools.partial(lambda compiled: jax.block_until_ready(compiled(*arguments[1:])), compiled)
    outputs = {name: [np.asarray(item) for item in jax.tree.leaves(run())] for name, run in sides.items()}
    errors = {
        name: max(_error(ours, theirs) for ours, theirs in zip(outputs[name], outputs["xla"], strict=True)) for name in sides
    }
    timings = interleaved(sides, rounds)
    return {
        "right": max(errors.values()) <= _NARROW,
        "errors": errors,
        "microseconds": {name: {"minimum": 1e6 * item.minimum, "median": 1e6 * item.median} for name, item in timings.items()},
    }


@contextlib.contextmanager
def _executor(name: str) -> Iterator[None]:
    before = os.environ.get(EXECUTOR_VARIABLE)
    os.environ[EXECUTOR_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[EXECUTOR_VARIABLE]
        else:
            os.environ[EXECUTOR_VARIABLE] = before


def _on_cpu(function: Callable[..., Any], *arguments: Any) -> Any:
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("highest"):
        return function(*arguments)


def _error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, as a share of the largest value; nan where one side has a NaN and the other not."""
    ours, theirs = ours.astype(np.float64), np.asarray(theirs).astype(np.float64)
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("nan")
    return float(np.nanmax(np.abs(ours - theirs), initial=0) / np.nanmax(np.abs(theirs), initial=1e-30))
