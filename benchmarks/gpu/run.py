"""The steps of a run: many rows compile or build at once, and one at a time is timed."""

from __future__ import annotations

import concurrent.futures
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aspen_jax.errors import AspenError
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from benchmarks.child import measure_in_child
from benchmarks.gpu import programs
from benchmarks.gpu.record import Record
from benchmarks.gpu.row import Row
from benchmarks.gpu.torch_side import COMPILED, EAGER

_OURS, _TORCH = "benchmarks.gpu.ours", "benchmarks.gpu.torch_side"
_ON_CPU = {"JAX_PLATFORMS": "cpu"}
# Processes share the memory of the GPU.
_ON_GPU = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# What a user would set for inference; PyTorch would start a compiler a core, in each process.
_FOR_TORCH = {**_ON_CPU, "TORCHINDUCTOR_FREEZING": "1", "TORCHINDUCTOR_COMPILE_THREADS": "3"}
_ABSENT = "absent: "

Key = TypeVar("Key")


def about_gpu() -> dict[str, Any]:
    """The GPU: its name, what code is compiled for, JAX's platform.

    Raises:
        AspenError: there is none.
    """
    return measure_in_child(_OURS, ("about",), _ON_GPU)


class Steps:
    """What is done with rows, each step in processes of its own.

    Args:
        architecture: what code is compiled for.
        rounds: of ten runs that are timed.
        minutes: after so many nothing new is begun, and what runs is ended; None for no end.
        jobs: processes at a time; half as many as there are cores by default.
    """

    def __init__(self, architecture: str, rounds: int, minutes: float | None, jobs: int | None):
        self._for_gpu = {ARCHITECTURE_VARIABLE: architecture}
        self._architecture = architecture
        self._rounds = str(rounds)
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self._jobs = jobs or max(1, len(os.sched_getaffinity(0)) // 2)
        self.failures: list[str] = []

    def compile(self, rows: Sequence[Row], record: Record | None) -> list[Row]:
        """The code of all rows into the cache; gives the rows that have one."""
        environment = {**_ON_CPU, **self._for_gpu}
        compiled = []
        for row, found in self._each({row: self._child(_OURS, ("compile", row.words), environment) for row in rows}):
            if "error" in found:
                self._fail(f"{row}: not compiled: {found['error']}", record)
                continue
            compiled.append(row)
            print(
                f"{row}: {found['ops']} ops, built in {found['build_s']:.1f} s, compiled in {found['nvrtc_s']:.1f} s", flush=True
            )
            if record is not None:
                record[row].update(found)
        return compiled

    def build_programs(self) -> None:
        """Programs into the cache, where there is nvcc."""
        for name in programs.PROGRAMS:
            try:
                programs.built(name, self._architecture)
                print(f"{name}: built", flush=True)
            except AspenError as error:
                print(error, flush=True)

    def run_programs(self, folder: Path | None, record: Record) -> None:
        """What launches and copies cost; a program that is absent is remarked."""
        for name in programs.PROGRAMS:
            try:
                found = programs.figures(name, self._architecture, folder, self._seconds_left)
            except AspenError as error:
                record.remark(str(error))
                continue
            record.programs[name] = found
            print(f"{name}: {len(found['figures'])} figures", flush=True)
            if "error" in found:
                record.remark(found["error"])
        record.write()

    def time(self, rows: Sequence[Row], with_torch: bool, record: Record) -> None:
        """Times of executors and XLA, then their errors, then PyTorch, for which there may be too little time."""
        with tempfile.TemporaryDirectory() as folder:
            timed = self._time_ours(rows, Path(folder), record)
            # Not beside the times: it takes all of the CPU, which calls need.
            compared = self._compare(timed, Path(folder), record)
            if with_torch:
                self._time_torch(compared, Path(folder), record)

    def _time_ours(self, rows: Sequence[Row], folder: Path, record: Record) -> list[Row]:
        environment = {**_ON_GPU, **self._for_gpu}
        tasks = {}
        for row in rows:
            tasks[row] = self._child(_OURS, ("time", row.words, self._rounds, _outputs(folder, row)), environment)
        done = []
        for row, found in self._each(tasks):
            if "error" in found:
                self._fail(f"{row}: not timed: {found['error']}", record)
                continue
            done.append(row)
            record[row]["times"].update(found)
            print(f"{row}: {_summary(found)}", flush=True)
            record.write()
        return done

    def _compare(self, rows: Sequence[Row], folder: Path, record: Record) -> list[Row]:
        tasks = {}
        for row in rows:
            tasks[row] = self._child(_OURS, ("errors", row.words, _outputs(folder, row), _expected(folder, row)), _ON_CPU)
        done = []
        for row, found in self._each(tasks):
            if "error" in found:
                self._fail(f"{row}: not compared: {found['error']}", record)
                continue
            done.append(row)
            record[row]["errors"] = found
            if found["wrong"]:
                self._fail(f"{row}: wrong, by more than {found['allowed']:.1e}: {', '.join(found['wrong'])}", record)
            record.write()
        return done

    def _time_torch(self, rows: Sequence[Row], folder: Path, record: Record) -> None:
        tasks = {}
        for side in (EAGER, COMPILED):
            for row in rows:
                words = (side, row.words, self._rounds, _expected(folder, row))
                tasks[side, row] = self._child(_TORCH, words, _FOR_TORCH)
        for (side, row), found in self._each(tasks):
            if "error" in found and "version" not in found:
                text = found["error"]
                record.remark(f"torch is {text}" if text.startswith(_ABSENT) else f"{row}: {side}: {text}")
                continue
            record.machine["torch"] = found.pop("version")
            error = record[row]["errors"]["against float32 on the CPU"][side] = found.pop("error")
            record[row]["times"][side] = found
            print(f"{row}: {_summary({side: found})}", flush=True)
            if not error <= record[row]["errors"]["allowed"]:
                self._fail(f"{row}: {side} is off by {error:.1e}", record)
            record.write()

    def _each(self, tasks: Mapping[Key, Callable[[], Any]]) -> Iterator[tuple[Key, Any]]:
        """What tasks give, in the order in which they end; {"error": why} for those that fail."""
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
            futures = {pool.submit(task): key for key, task in tasks.items()}
            for future in concurrent.futures.as_completed(futures):
                try:
                    yield futures[future], future.result()
                except AspenError as error:
                    yield futures[future], {"error": str(error)}

    def _child(self, module: str, words: Sequence[str], environment: Mapping[str, str]) -> Callable[[], Any]:
        def run() -> Any:
            if self._end is not None and time.monotonic() > self._end:
                raise AspenError("time was over; --minutes grants more")
            return measure_in_child(module, words, environment, self._seconds_left)

        return run

    @property
    def _seconds_left(self) -> float | None:
        return None if self._end is None else max(1.0, self._end - time.monotonic())

    def _fail(self, text: str, record: Record | None) -> None:
        self.failures.append(text)
        if record is None:
            print(text, flush=True)
        else:
            record.remark(text)
            record.write()


def _outputs(folder: Path, row: Row) -> str:
    return str(folder / f"{row.words} outputs.npz")


def _expected(folder: Path, row: Row) -> str:
    return str(folder / f"{row.words} expected.npz")


def _summary(times: Mapping[str, Mapping[str, float]]) -> str:
    """The most telling figure of each side."""
    return ", ".join(f"{side} {next(iter(figures.values())):.4g} us" for side, figures in times.items())
