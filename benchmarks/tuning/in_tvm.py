"""Tunes an ONNX model by TVM's MetaSchedule. TVM may have a Python of its own, so this needs numpy, onnx and TVM alone."""
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ROUNDS = 10
_LONGEST_MESSAGE = 300


def _measure(folder: str, trials: str, threads: str) -> dict[str, Any]:
    """Compile the model of a folder untuned, then tuned with so many trials a task, and time both."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks, tune_relax

    here = dict(tvm.target.Target.from_device(tvm.cpu()).export())
    target: Any = tvm.target.Target({**here, "num-cores": int(threads)})
    module = from_onnx(onnx.load(Path(folder) / "model.onnx"), keep_params_in_input=False)
    inputs = [tvm.runtime.tensor(x) for x in _arrays(Path(folder) / "nchw.npz")]

    def runner(compiled: Any) -> Callable[[], list[np.ndarray]]:
        machine = relax.VirtualMachine(compiled, tvm.cpu())

        def run() -> list[np.ndarray]:
            outputs = machine["main"](*inputs)
            return [output.numpy() for output in ([outputs] if hasattr(outputs, "numpy") else outputs)]

        return run

    untuned = runner(tvm.compile(module, target=target))
    prepared = tvm.transform.Sequential(
        [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings(), relax.get_pipeline("zero")]
    )
    with target, tempfile.TemporaryDirectory() as work:
        module = prepared(module)
        tasks = extract_tasks(module, target)
        begin = time.perf_counter()
        tune_relax(
            module, {}, target, work, int(trials) * len(tasks), int(trials), num_trials_per_iter=int(trials), builder=_builder()
        )
        tuned_module = relax.transform.MetaScheduleApplyDatabase(work)(module)
        seconds = time.perf_counter() - begin
        candidates = sum(1 for _ in (Path(work) / "database_tuning_record.json").open())
        tuned = runner(tvm.compile(tuned_module, target=target))
    expected = _arrays(Path(folder) / "expected.npz")
    return {
        "tasks": len(tasks),
        "candidates": candidates,
        "seconds": seconds,
        "untuned_s": _fastest(untuned),
        "tuned_s": _fastest(tuned),
        "difference": max(_difference(ours, theirs) for ours, theirs in zip(tuned(), expected, strict=True)),
        "version": tvm.__version__,
    }


def _builder() -> Any:
    """A builder in this process: TVM's own worker processes hang here with version 0.27."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.s_tir.meta_schedule.builder.local_builder import default_build, default_export

    class InProcess(PyBuilder):
        def build(self, build_inputs: Sequence[Any]) -> list[Any]:
            results = []
            for candidate in build_inputs:
                try:
                    built = default_build(candidate.mod, candidate.target, None)
                    results.append(BuilderResult(default_export(built), None))
                except Exception as error:  # a candidate that cannot be built is one that loses
                    results.append(BuilderResult(None, f"{type(error).__name__}: {error}"))
            return results

    return derived_object(InProcess)()


def _arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def _fastest(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference as a share of the largest output; a value that is not finite is infinitely far."""
    if ours.shape != theirs.shape or not np.isfinite(ours).all():
        return float("inf")
    return float(np.abs(ours - theirs).max(initial=0) / (np.abs(theirs).max(initial=0) or 1))


def _serve(words: Sequence[str]) -> None:
    """Print what was measured as `benchmarks.child.serve` does. TVM's own messages go to the standard error."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer: dict[str, Any] = {"measured": _measure(*words)}
    except Exception as error:  # a library raises what it likes
        answer = {"error": f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]}
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    _serve(sys.argv[1:])
