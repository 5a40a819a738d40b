"""The engine's policies (ASPEN, sections 3.2, 3.3 and 4.1): times here, times simulated for more workers, bytes from memory."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

import aspen_jax
import aspen_jax.schedule as sched
from aspen_jax import aspen
from aspen_jax.errors import AspenError, InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.random_array import random_array
from aspen_jax.schedule.policy import Order
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.native import cmake_program
from benchmarks.options import File, Models, Sizes
from benchmarks.sharing import find_tool
from benchmarks.zoo.model import Model, Size

NAMES: tuple[Order, ...] = get_args(Order)
_LINE = 64


@benchmark
def policies(
    models: Models = ("resnet50",),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 15,
    beyond: tuple[int, ...] = (16, 64),
    cache_mib: tuple[int, ...] = (),
    only: tuple[Order, ...] = NAMES,
    program: File = None,
    json: File = None,
) -> Run:
    """Times of whole networks under each policy of the engine, in turns.

    For more workers than there are cores the engine's scheduler runs in simulated time, on the times that tiles take one worker.
    Bytes are what one worker moves between the last-level cache and memory: valgrind's cachegrind plays the loads and stores of a
    run with warm caches to an 8-way L1 of 32 KiB and a 16-way last level, by kernels of AVX2, which is what it knows.

    Args:
        models: names in the zoo.
        size: of the inputs.
        rounds: how often each is timed.
        beyond: more numbers of workers, which are only simulated.
        cache_mib: sizes of the last level in MiB, powers of two; none leaves valgrind out. A run there takes minutes.
        only: the policies.
        program: the program, already built; it is built in a temporary directory by default.
        json: where to write the figures as well.
    """
    if min(beyond, default=1) < 1:
        raise InputError(f"{min(beyond)} workers are to be simulated; take 1 or more")
    if any(mib < 1 or mib & (mib - 1) for mib in cache_mib):
        raise InputError(f"the last level's sizes are {cache_mib} MiB; take powers of two, such as 4")
    if program is not None and not program.is_file():
        raise InputError(f"there is no program {str(program)!r}; leave the option out to have it built")
    valgrind = find_tool("valgrind", package="valgrind") if cache_mib else ""
    workers = aspen_jax.num_workers()
    with tempfile.TemporaryDirectory() as directory:
        path = program or cmake_program("policies", Path(directory))
        for name in models:
            model = zoo.build(name, size)
            file = _saved(model, workers, Path(directory))
            times = _times(path, file, workers, rounds, only)
            simulated = {count: _simulated(model, count, only) for count in beyond}
            file = _saved(model, 1, Path(directory)) if cache_mib else file
            moved = {mib: {policy: moved_bytes(valgrind, path, file, policy, mib << 20) for policy in only} for mib in cache_mib}
            columns = ["min, ms", "median, ms", *(f"{count} simulated, ms" for count in beyond)]
            formats = dict.fromkeys(columns, ".2f") | {f"{mib} MiB, MB": ".1f" for mib in cache_mib}
            table = Table(f"{name}, {workers} workers", {"policy": "", **formats})
            for policy in only:
                spans = [min(times[policy]), statistics.median(times[policy]), *(each[policy] for each in simulated.values())]
                numbers = *spans, *(each[policy] for each in moved.values())
                table.add(policy, *(number / 1e6 for number in numbers), samples_ns=times[policy])
            yield table


def misses(text: str) -> int:
    """Misses of the last level for data, from what cachegrind prints."""
    found = re.search(r"LLd misses:\s+([\d,]+)", text)
    if found is None:
        raise AspenError(f"cachegrind printed no misses of the last level, but:\n{text}")
    return int(found[1].replace(",", ""))


def _graph(model: Model, workers: int) -> TileGraph:
    aspen_jax.set_num_workers(workers)
    return aspen(model.apply).graph(*model.arguments)


def _saved(model: Model, workers: int, directory: Path) -> Path:
    file = directory / f"graph_for_{workers}"
    _graph(model, workers).save(file)
    return file


def _simulated(model: Model, workers: int, orders: Sequence[Order]) -> dict[str, int]:
    """Makespans by policy, in nanoseconds."""
    graph = _graph(model, workers)
    aspen_jax.set_num_workers(1)
    inputs = [random_array(value) for value in graph.program().inputs]
    lasted = np.min([np.diff(graph.timeline(*inputs)[:, 1:]) for _ in range(5)], axis=0)
    machine, costs = sched.Machine([sched.Cpu(workers)]), sched.Costs(lasted)
    return {order: sched.simulate(graph, machine, costs, _Named(order)).makespan for order in orders}


class _Named(sched.Policy):
    def __init__(self, order: Order):
        self.order = order


def _times(program: Path, graph: Path, workers: int, rounds: int, orders: Sequence[Order]) -> dict[str, list[int]]:
    lines = _run([str(program), str(graph), str(workers), str(rounds + 1), *orders]).stdout.splitlines()
    return {
        policy: list(map(int, line.split()))[1:] for policy, line in zip(orders, lines, strict=True)
    }  # without the first round


def moved_bytes(valgrind: str, program: Path, graph: Path, policy: str, cache_bytes: int) -> int:
    """Bytes between memory and a cache of this size, a power of two, that a second run of a saved graph adds to the first's."""
    caches = ["--I1=32768,8,64", "--D1=32768,8,64", f"--LL={cache_bytes},16,64"]
    options = ["--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null", *caches]
    once, twice = (misses(_run([valgrind, *options, str(program), str(graph), "1", str(runs), policy]).stderr) for runs in (1, 2))
    return _LINE * (twice - once)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ASPEN_CPU_TARGET": "avx2"} if "--tool=cachegrind" in command else None
    ran = subprocess.run(command, text=True, capture_output=True, check=False, env=environment)
    if ran.returncode:
        raise AspenError(f"{' '.join(command)} ended with status {ran.returncode}:\n{ran.stderr}")
    return ran
