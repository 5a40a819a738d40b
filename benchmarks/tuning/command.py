"""The command `python -m benchmarks tuning`."""

from __future__ import annotations

import dataclasses
import json as json_
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from aspen_jax import num_workers
from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.errors import AspenError, InputError
from aspen_jax.report.comparison import TOLERANCE
from benchmarks.benchmark import Run, benchmark
from benchmarks.child import measure_in_child
from benchmarks.markdown import table
from benchmarks.options import File, Sizes
from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layout import to_nchw

_ASPEN, _TVM = "aspen", "TVM MetaSchedule"


@benchmark
def tuning(
    model: str = "squeezenet1_1",
    size: Sizes = Size(),  # noqa: B008 - immutable
    trials: int = 32,
    tvm_python: File = None,
    workers: int | None = None,
    timeout: float = 3600.0,
    json: File = None,
) -> Run:
    """Bolt's figure 10b on a CPU: how long tuning a network takes here and by TVM's MetaSchedule, and what it gains.

    Each side begins with nothing known, has the machine alone, and times its own runs before and after.

    Args:
        model: the network.
        size: of its inputs.
        trials: schedules that TVM may time for each of its tasks.
        tvm_python: a Python that has `apache-tvm`, `onnx` and `xgboost`; the one that runs this by default.
        workers: cores for both sides; all usable ones by default.
        timeout: seconds that a side may take.
        json: where to write the figures as well.
    """
    if trials < 1:
        raise InputError(f"{trials} trials a task find nothing; take 1 or more")
    python = Path(sys.executable) if tvm_python is None else tvm_python
    if not python.is_file():
        raise InputError(f"there is no Python {python}; name one that has apache-tvm, onnx and xgboost")
    threads = str(num_workers())
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        words = [str(folder), model, json_.dumps(dataclasses.asdict(size)), threads]
        for what in ("weights", "onnx"):
            measure_in_child("benchmarks.peers.prepare", [*words, what])
        prepared = Prepared(folder, model, size)
        np.savez(folder / "nchw.npz", *map(to_nchw, prepared.inputs))
        empty_cache = {CACHE_VARIABLE: str(folder / "cache")}
        found[_ASPEN] = measure_in_child("benchmarks.tuning.in_aspen", words, empty_cache, timeout)
        try:
            of_tvm = [str(folder), str(trials), threads]
            found[_TVM] = measure_in_child("benchmarks.tuning.in_tvm", of_tvm, {"TVM_NUM_THREADS": threads}, timeout, python)
        except AspenError as error:
            found[_TVM] = {"error": str(error)}
    yield "\n".join(table(("", *_HEADER), [[side, *_cells(result)] for side, result in found.items()]))
    yield found
    yield 0 if all(result.get("difference", 0) <= TOLERANCE for result in found.values()) else 1


_HEADER = ("tasks", "timed", "tuning, s", "untuned, ms", "tuned, ms", "times as fast", "largest difference")


def _cells(result: dict[str, Any]) -> list[str]:
    if "error" in result:
        return [result["error"], *[""] * (len(_HEADER) - 1)]
    before, after = result["untuned_s"], result["tuned_s"]
    counts = str(result["tasks"]), str(result["candidates"]), f"{result['seconds']:.0f}"
    return [*counts, f"{before * 1e3:.3g}", f"{after * 1e3:.3g}", f"{before / after:.2f}", f"{result['difference']:.1e}"]
