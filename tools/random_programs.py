"""Runs random functions decorated and undecorated, and prints where they differ.

    python tools/random_programs.py --count 2000

The seeds follow from the content of the checkout, so the same sources try the same functions. `--seed` tries others, or one
again. Functions run in processes of their own, some in each. One that ends its process is run again undecorated. It counts as
XLA's if it ends that process too. Exit status 1 says that something differs.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import tyro

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

# Functions of one process. JAX's caches grow with each.
_OF_PROCESS = 50
# Seconds that a function may take beside other work.
_PATIENCE = 1800

Mode = Literal["forced", "default"]


@dataclasses.dataclass
class Found:
    """What came of some functions.

    Attributes:
        tried: how many ended.
        differ: how many of them have a fault.
        by_xla: seeds of those that end their process undecorated, too.
        steps: steps that were judged alone.
        forms: forms of functions.
        calls: custom calls of tiles that were compiled.
    """

    tried: int = 0
    differ: int = 0
    by_xla: list[int] = dataclasses.field(default_factory=list)
    steps: int = 0
    forms: int = 0
    calls: int = 0

    def __add__(self, other: Found) -> Found:
        return Found(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def main(
    count: int = 2000,
    seed: int | None = None,
    mode: Mode = "forced",
    steps: int = 30,
    seconds: float = float("inf"),
    jobs: int = 1,
) -> int:
    """Try random functions.

    Args:
        count: how many.
        seed: the first seed; by default it follows from the content of the checkout.
        mode: "forced" tiles what tiles can compute; "default" leaves to XLA what XLA does as fast, and draws larger arrays.
        steps: how many steps each function has.
        seconds: begin no other functions after so long.
        jobs: how many processes run at once.

    Returns:
        0, or 1 where a function differs.
    """
    from tests.content import content, seed_of

    first = seed_of("random programs") * 1_000_000 if seed is None else seed
    print(f"{mode}, content {content()}, seeds from {first}", flush=True)
    end = time.monotonic() + seconds

    def some(begin: int) -> Found:
        return _several(begin, min(first + count, begin + _OF_PROCESS), mode, steps) if time.monotonic() < end else Found()

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = sum(pool.map(some, range(first, first + count, _OF_PROCESS)), Found())
    print(
        f"{found.tried} functions, {found.differ} differ; {found.steps} steps alone, {found.forms} forms, {found.calls} custom "
        f"calls; XLA itself ends the process of {len(found.by_xla)}: {', '.join(map(str, found.by_xla)) or 'none'}"
    )
    return 1 if found.differ else 0


def _several(first: int, behind: int, mode: Mode, steps: int) -> Found:
    """Functions in processes of their own: as many as it takes."""
    found = Found()
    while first < behind:
        for line in _lines(first, behind, mode, steps):
            if line.startswith("TRIED "):
                seed, differs, *counts = map(int, line.split()[1:])
                found += Found(1, differs, [], *counts)
                first = seed + 1
            else:
                print(line, flush=True)
        if first < behind:  # the process ended in this one
            is_of_xla = not any(line.startswith("TRIED ") for line in _lines(first, first + 1, mode, steps, undecorated=True))
            if not is_of_xla:
                print(f"seed {first}: it ended its process", flush=True)
            found += Found(1, not is_of_xla, [first] if is_of_xla else [])
            first += 1
    return found


def _lines(first: int, behind: int, mode: Mode, steps: int, *, undecorated: bool = False) -> Iterator[str]:
    """What a process says of some functions: a line of each fault, then TRIED, its seed and counts.

    Raises:
        RuntimeError: the process ended before its first function.
    """
    environment = {**os.environ, "XLA_FLAGS": f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"}
    environment.pop("ASPEN_DISABLE_PASSES", None)
    if mode == "forced":
        environment["ASPEN_DISABLE_PASSES"] = "choice"
    command = [sys.executable, *_OPTIONS, __file__, "--process", *map(str, (first, behind, steps, int(undecorated))), mode]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        if process.stdout.readline() != _BEGUN:
            process.wait()
            errors.seek(0)
            raise RuntimeError(f"no function was tried:\n{errors.read()[-3000:]}")
        yield from (line.rstrip("\n") for line in process.stdout)


_BEGUN = "BEGUN\n"
# As this process was started.
_OPTIONS = ["-P"] if sys.flags.safe_path else []


def _process(first: int, behind: int, steps: int, undecorated: int, mode: Mode) -> None:
    """Tries functions in this process."""
    import signal

    import jax

    from tests import random_checks

    jax.devices()
    print(_BEGUN, end="", flush=True)
    for seed in range(first, behind):
        signal.alarm(_PATIENCE)
        tally = random_checks.Tally()
        found: list[object] = []
        try:
            if undecorated:
                random_checks.run_undecorated(seed, steps, is_forced=mode == "forced")
            else:
                found += random_checks.faults(seed, steps, is_forced=mode == "forced", tally=tally)
        except Exception:
            found.append(traceback.format_exc(limit=-6))
        for fault in found[:3]:
            print(f"seed {seed}: {fault}", flush=True)
        print("TRIED", seed, int(bool(found)), tally.steps, tally.forms, tally.calls, flush=True)
        signal.alarm(0)
        if (seed - first) % 10 == 9:
            jax.clear_caches()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        _process(*map(int, sys.argv[2:6]), sys.argv[6])  # type: ignore[arg-type]
    else:
        sys.exit(tyro.cli(main))
