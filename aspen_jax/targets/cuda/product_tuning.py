"""Times the candidates of a program's products on a GPU, and keeps the fastest (Bolt, section 3.2.2).

A product is timed once for a kind of GPU: the choice serves every model that has the same one, and those like it. The candidates
of a product are compiled side by side, and then timed one after the other. One that cannot be compiled or launched, or whose
result is not the default's, is refused.

Afterwards each product whose depth may be cut is timed in other numbers of slices than the cost model's. At last cublasLt
and cuDNN are timed beside the best that was found, for products and convolutions that they take.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from aspen_jax import apu
from aspen_jax.errors import AspenError
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.random_array import random_array
from aspen_jax.ops.conv import CONV2D
from aspen_jax.passes import run_passes
from aspen_jax.passes.split_depth import SLICES
from aspen_jax.targets.cpu.tuning import kept_in
from aspen_jax.targets.cuda.code.image import Code, compile_ops
from aspen_jax.targets.cuda.device import architecture
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.library import cublas, cudnn
from aspen_jax.targets.cuda.passes.split_depth import cut_depth, modelled_slices
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.products.candidates import Candidate, candidates
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering, known, remember
from aspen_jax.targets.cuda.products.problem import Problem

# Ops that take a smaller share of the whole, as predicted, keep the default.
_LEAST_SHARE = 0.004
# Launches that are timed, of which the fastest counts; the fake of the driver and a GPU both time ten runs at a time.
_ROUNDS = 5
# A candidate must gain this much on the default, or it may be noise.
_LEAST_GAIN = 0.01
# How far results may be from the default's, as a share of the largest. They differ by the order of sums in float32; what
# is stored is rounded once more.
_TOLERANCE = {2: 2e-2, 4: 2e-3}

Arrays = Mapping[Value, np.ndarray]
_NOTHING: Arrays = MappingProxyType({})


class Sample(NamedTuple):
    """One way to compute ops, timed.

    Attributes:
        seconds: of the fastest run.
        result: of the last op.
    """

    seconds: float
    result: np.ndarray


class Timer(Protocol):
    """Builds ops as the choices in force say, and times what was built. `build` may be called by several threads at once."""

    def build(self, ops: Sequence[Op], arrays: Arrays = _NOTHING) -> Any:
        """Compiles ops, each of which may read those before it. `arrays`: of some of their operands; others are random."""
        ...

    def time(self, built: Any) -> Sample:
        """Times them."""
        ...


class DeviceTimer:
    """Times ops by the events of the first GPU, or of the driver that tests play."""

    def __init__(self, compile_program: Callable[[Program], Code] | None = None):
        """`compile_program`: gives a program's code; by default NVRTC does, for this process's GPU."""
        self._compile = compile_program or (lambda program: compile_ops(program.ops, architecture()))

    def build(self, ops: Sequence[Op], arrays: Arrays = _NOTHING) -> tuple[DeviceRun, list[np.ndarray]]:
        """Loads the code of the ops."""
        program = _alone(ops)
        graph = apu.build(program, NUM_BLOCKS, Gpu.here())
        run = DeviceRun(graph, self._compile(program), Executor.STREAM)
        return run, [arrays[value] if value in arrays else random_array(value) for value in program.inputs]

    def time(self, built: tuple[DeviceRun, list[np.ndarray]]) -> Sample:
        """Runs the ops one after the other."""
        run, arrays = built
        (result,), seconds = run.timed(*arrays, rounds=_ROUNDS)
        return Sample(min(seconds.device), result)


@dataclasses.dataclass(frozen=True)
class KernelTuning:
    """What timing candidates found.

    Attributes:
        products: how many different products were timed.
        known: how many were known from before.
        candidates: ways that were timed, altogether.
        refused: those that were not to be had, with the reason.
        seconds: how long it took.
        default_s: seconds of all products that were timed, one after the other, by the defaults.
        tuned_s: likewise, by what was found.
        path: the file that keeps it; None where it could not be written.
    """

    products: int
    known: int
    candidates: int
    refused: tuple[str, ...]
    seconds: float
    default_s: float
    tuned_s: float
    path: Path | None

    def __str__(self) -> str:
        before = f", {self.known} known from before" if self.known else ""
        refused = f", {len(self.refused)} refused" if self.refused else ""
        gain = f"; {self.default_s / self.tuned_s:.2f} times as fast as by default" if self.products else ""
        ways = f"{self.products} products timed in {self.candidates} ways{refused}{before} in {self.seconds:.0f} s"
        return f"{ways}{gain}; {kept_in(self.path)}"


def tune_kernels(programs: Sequence[Program], disabled: frozenset[str], timer: Timer) -> KernelTuning:
    """Search for the candidates and slices of programs' products; `kernel_choices` remembers what is found.

    Args:
        programs: before any pass.
        disabled: passes that are left out.
        timer: what builds and times ops.
    """
    start = time.perf_counter()
    search = _Search(programs, disabled, timer)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        search.time_candidates(pool)
    search.time_slices()
    search.time_cublas()
    search.time_cudnn()
    path = remember(search.found)
    tuned = [search.found[problem].nanoseconds / 1e9 for problem in search.defaults]
    return KernelTuning(
        len(search.defaults),
        len(search.from_before),
        search.ways,
        tuple(search.refused),
        time.perf_counter() - start,
        sum(search.defaults.values()),
        sum(tuned),
        path,
    )


class _Search:
    def __init__(self, programs: Sequence[Program], disabled: frozenset[str], timer: Timer):
        self.programs = programs
        self.disabled = disabled
        self.timer = timer
        self.before = known()
        self.found: dict[Problem, Timed] = {}
        self.from_before: set[Problem] = set()
        self.defaults: dict[Problem, float] = {}  # seconds
        self.refused: list[str] = []
        self.ways = 0

    def time_candidates(self, pool: concurrent.futures.Executor) -> None:
        """Time each product that takes a share of the whole."""
        ops = [op for program in self.programs for op in run_passes(program, self.disabled, Gpu.here(), UNPLANNED).ops]
        whole = Gpu.here().of_ops(ops)
        for op in ops:
            problem = Problem.of(op)
            if problem is None or problem in self.defaults:
                continue
            if problem in self.before.entries:
                self.from_before.add(problem)
            elif Gpu.here().of_ops([op]) >= _LEAST_SHARE * whole:
                self._time(problem, op, pool)

    def _time(self, problem: Problem, op: Op, pool: concurrent.futures.Executor) -> None:
        ways: list[Candidate | None] = [None, *candidates(problem, self.before.architecture)]
        choices = [self._choices({problem: Timed(way, 1.0)}) for way in ways]
        built = [pool.submit(contextvars.copy_context().run, self._build, choice, [op]) for choice in choices]
        default: Sample | None = None
        best = Timed(None, math.inf)
        for way, choice, building in zip(ways, choices, built, strict=True):
            sample = self._sample(f"{problem}: {way or 'default'}", choice, building.result, default)
            if way is None:
                if sample is None:
                    return  # there is nothing to compare with
                default, best = sample, Timed(None, sample.seconds * 1e9)
                self.defaults[problem] = sample.seconds
            elif sample is not None and sample.seconds * 1e9 < best.nanoseconds:
                gains = default is not None and sample.seconds < default.seconds * (1 - _LEAST_GAIN)
                best = Timed(way, sample.seconds * 1e9) if gains else best
        self.found[problem] = best

    def time_slices(self) -> None:
        """Time each product that may be sliced in half and twice as many slices as the cost model takes, and as a whole."""
        # As the model slices, whatever was timed before.
        unsplit = self.disabled | {"split_depth"}
        done: set[Problem] = set()
        for op in (op for program in self.programs for op in run_passes(program, unsplit, Gpu.here(), UNPLANNED).ops):
            problem = Problem.of(op)
            if problem is None or problem in done or self.before.slices_of(problem) is not None:
                continue
            done.add(problem)
            modelled = modelled_slices(op, Gpu.here())
            ops = [op] if modelled == 1 else cut_depth(op, modelled, Gpu.here())
            if ops is None or Problem.of(ops[0]) not in self.defaults:
                continue  # it takes no share of the whole
            self._time_slices_of(problem, op, modelled)

    def _time_slices_of(self, problem: Problem, op: Op, modelled: int) -> None:
        place = SLICES.index(modelled) if modelled in SLICES else -1
        near = {modelled, 1, *SLICES[max(place - 2, 0) : place + 3]}
        default: Sample | None = None
        best: tuple[float, int] | None = None
        for slices in sorted(near, key=lambda slices: slices != modelled):
            ops = [op] if slices == 1 else cut_depth(op, slices, Gpu.here())
            if ops is None:
                continue
            choice = self._choices(self.found)
            name = f"{problem}: {slices} slices"
            sample = self._sample(name, choice, functools.partial(self._build, choice, ops), default)
            if sample is None:
                if slices == modelled:
                    return
                continue
            default = default or sample
            if best is None or sample.seconds < best[0] * (1 - _LEAST_GAIN):
                best = sample.seconds, slices
        if best is not None:
            as_built = Timed(self._choices({}).of(problem).candidate, best[0] * 1e9)
            whole = self.found.get(problem, as_built)
            self.found[problem] = dataclasses.replace(whole, slices=best[1])

    def time_cublas(self) -> None:
        """Time each product that cublasLt takes by it, and as the best that was found of ours."""
        if not cublas.is_there():
            return
        done: set[Problem] = set()
        for op in (op for program in self._unsplit() for op in program.ops):
            problem = Problem.of(op)
            if problem is None or problem in done or problem in self.before.entries or cublas.LibraryProduct.of(op) is None:
                continue
            best = self._best(op, problem)
            if best is None:
                continue
            done.add(problem)
            own, default = best
            seconds = self._faster(f"{problem}: cublasLt", {problem: dataclasses.replace(own, by_cublas=True)}, op, default)
            if seconds is not None:
                self.found[problem] = dataclasses.replace(own, nanoseconds=seconds * 1e9, by_cublas=True)

    def time_cudnn(self) -> None:
        """Time each convolution that cuDNN takes by it, with what follows it, and as the best that was found before."""
        if not cudnn.is_there():
            return
        for program in self._unsplit():
            constants = {value for value, _ in program.constants}
            for op in program.ops:
                problem, taken = Problem.of(op), cudnn.relaid(op) if op.family is CONV2D else None
                convolution = None if taken is None else cudnn.LibraryConvolution.of(taken)
                if problem is None or taken is None or convolution is None or op.inputs[1].value not in constants:
                    continue
                found = self._found(problem)
                best = None if found is not None and convolution.digest in dict(found.cudnn) else self._best(op, problem)
                if best is None:
                    continue
                own, default = best
                weights = op.inputs[1]
                as_ours = weights.view.gather(random_array(weights.value))
                arrays = {taken.inputs[1].value: np.ascontiguousarray(np.transpose(as_ours, cudnn.ORDER))}
                wins, loses = (
                    dataclasses.replace(own, cudnn=(*own.cudnn, (convolution.digest, fastest))) for fastest in (True, False)
                )
                seconds = self._faster(f"{problem}: cuDNN", {problem: wins}, taken, default, arrays)
                self.found[problem] = loses if seconds is None else wins

    def _unsplit(self) -> Iterator[Program]:
        """The programs, no depth cut."""
        return (run_passes(program, self.disabled | {"split_depth"}, Gpu.here(), UNPLANNED) for program in self.programs)

    def _found(self, problem: Problem) -> Timed | None:
        return self.found.get(problem) or self.before.entries.get(problem)

    def _best(self, op: Op, problem: Problem) -> tuple[Timed, Sample] | None:
        """What was found for an op so far, and its time; None where it takes no share of the whole, or cannot be timed."""
        found = self._found(problem)
        is_whole = found is not None and found.by_cublas and cublas.LibraryProduct.of(op) is not None
        slices = 1 if is_whole else (found and found.slices) or modelled_slices(op, Gpu.here())
        best = [op] if slices == 1 else cut_depth(op, slices, Gpu.here())
        if best is None or (problem not in self.before.entries and Problem.of(best[0]) not in self.defaults):
            return None
        choice = self._choices({})
        default = self._sample(f"{problem}: best", choice, functools.partial(self._build, choice, best), None)
        return default and (found or Timed(choice.of(problem).candidate, default.seconds * 1e9, slices), default)

    def _faster(self, name: str, found: dict[Problem, Timed], op: Op, default: Sample, arrays: Arrays = _NOTHING) -> float | None:
        """The seconds of an op by a library, if that is what `found` says and it is faster than the default."""
        choice = self._choices(found)
        sample = self._sample(name, choice, functools.partial(self._build, choice, [op], arrays), default)
        return sample.seconds if sample is not None and sample.seconds < default.seconds * (1 - _LEAST_GAIN) else None

    def _choices(self, entries: dict[Problem, Timed]) -> KernelChoices:
        return self.before.updated({**self.found, **entries})

    def _build(self, choices: KernelChoices, ops: Sequence[Op], arrays: Arrays = _NOTHING) -> Any:
        with considering(choices):
            return self.timer.build(ops, arrays)

    def _sample(self, name: str, choices: KernelChoices, build: Callable[[], Any], default: Sample | None) -> Sample | None:
        """The time of one way; None where it is refused."""
        self.ways += 1
        try:
            with considering(choices):
                sample = self.timer.time(build())
        except AspenError as error:
            self.refused.append(f"{name}: {error}")
            return None
        wrong = _why_wrong(sample, default)
        if wrong is not None:
            self.refused.append(f"{name}: {wrong}")
            return None
        return sample


def _why_wrong(sample: Sample, default: Sample | None) -> str | None:
    """Why a sample does not count."""
    if not 0 < sample.seconds < math.inf:
        return f"it took {sample.seconds} s"
    result = np.asarray(sample.result, np.float32)
    if not np.isfinite(result).all():
        return "its result is not finite"
    if default is not None:
        wanted = np.asarray(default.result, np.float32)
        error = np.abs(result - wanted).max(initial=0)
        if error > _TOLERANCE[min(sample.result.dtype.itemsize, 4)] * np.abs(wanted).max(initial=0):
            return f"its result is {error:.3g} from the default's"
    return None


def _alone(ops: Sequence[Op]) -> Program:
    """Ops as a program, whose result is that of the last one."""
    made = {op.output for op in ops}
    read = dict.fromkeys(item.value for op in ops for item in op.inputs if item.value not in made)
    return Program(tuple(read), (), tuple(op.replace(in_place=False) for op in ops), (Operand.whole(ops[-1].output),))
