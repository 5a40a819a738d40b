"""Single ops as tile graphs with one worker, for each instruction set, beside the multiply-add peak of the same minute."""

from __future__ import annotations

import time
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from aspen_jax import _engine, aspen
from aspen_jax.cost.timing import interleaved
from aspen_jax.errors import InputError
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from benchmarks.benchmark import TIMES, Run, Table, benchmark
from benchmarks.child import measure_in_child, serve
from benchmarks.kernel_cases import CASES, KernelCase
from benchmarks.options import File

Words = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WORD")]


@benchmark
def kernels(words: Words = (), /, targets: tuple[str, ...] = (), rounds: int = 10, json: File = None) -> Run:
    """Convolutions, products and memory-bound ops: GFLOP/s, share of the multiply-add peak of one core, GB/s.

    The times are processor time of a jitted call that holds one op, so they include the custom call.

    Args:
        words: only the ops whose name has one of these words in it, such as resnet, or 3x3.
        targets: instruction sets; all that this machine has by default.
        rounds: how often each op is timed.
        json: where to write the figures as well.
    """
    if not _chosen(words):
        raise InputError(f"no op has {' or '.join(words)} in its name; take words of: {'; '.join(case.name for case in CASES)}")
    available = _engine.cpu_targets()
    unknown = sorted(set(targets) - set(available))
    if unknown:
        raise InputError(f"{unknown[0]!r} is no instruction set of this machine and build; take {', '.join(available)}")
    right = True
    for target in targets or available:
        rows = measure_in_child("benchmarks.kernels", (str(rounds), *words), {"ASPEN_CPU_TARGET": target})
        right &= all(row["difference"] <= TOLERANCE for row in rows)
        yield _table(target, rows)
        peak = max((row["peak_flops"] for row in rows if "peak_flops" in row), default=0)
        yield f"multiply-add peak of one core: {peak / 1e9:.0f} GFLOP/s\n"
    yield 0 if right else 1


def _chosen(words: tuple[str, ...]) -> list[KernelCase]:
    return [case for case in CASES if not words or any(word in case.name for word in words)]


def _measure(rounds: str, *words: str) -> list[dict[str, Any]]:
    share_cores(1)
    return [_measure_case(case, int(rounds)) for case in _chosen(words)]


def _measure_case(case: KernelCase, rounds: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    inputs = [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in case.shapes]
    tiled = jax.jit(aspen(case.function, strict=True))
    row: dict[str, Any] = {"case": case.name, "target": _engine.cpu_target(), "flops": case.flops, "bytes": case.bytes}
    row["difference"] = largest_difference(tiled(*inputs), jax.jit(case.function)(*inputs))
    if row["difference"] > TOLERANCE:
        return row
    peaks: list[float] = []
    timing = interleaved(
        {"op": lambda: tiled(*inputs)},
        rounds,
        on_round=lambda: peaks.append(_engine.peak_flops(_engine.cpu_target())),
        clock=time.process_time,  # one thread works at a time; what neighbours steal in the middle of a call is not the kernel's
    )["op"]
    return {**row, **timing.to_json(), "peak_flops": max(peaks)}


def _table(target: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(target, {"op": "", **TIMES, "GFLOP/s": ".1f", "of peak": ".0%", "GB/s": ".1f"})
    for row in rows:
        if "min_s" not in row:
            table.add(row["case"], "WRONG", f"{row['difference']:.1e}", *[None] * 4, **row)
            continue
        speed = row["flops"] / row["min_s"]
        rates = speed / 1e9, speed / row["peak_flops"], row["bytes"] / row["min_s"] / 1e9
        table.add(row["case"], row["min_s"], row["median_s"], row["spread"], *rates, **row)
    return table


if __name__ == "__main__":
    serve(_measure)
