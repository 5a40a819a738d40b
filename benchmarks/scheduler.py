"""What scheduling a tile costs: graphs of empty tiles in the engine alone, without Python (cpp/scheduler.cc)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from aspen_jax.errors import AspenError, InputError
from aspen_jax.report.cores import share_cores
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import check_rounds
from benchmarks.native import cmake_program
from benchmarks.options import File

_TARGET = "scheduler"


def scheduler(rounds: int = 51, workers: int | None = None, program: File = None, json: File = None) -> int:
    """Nanoseconds a tile of graphs of empty tiles (stencil, chain, tree, random) with 1 to so many workers.

    The program checks that each tile runs once, after its parents, before it takes times.

    Args:
        rounds: how often each is timed.
        workers: the most workers; all usable cores by default.
        program: the program, already built; it is built in a temporary directory by default, which takes a while.
        json: where to write the figures as well.
    """
    check_rounds(rounds)
    count = share_cores(workers)
    if program is not None and not program.is_file():
        raise InputError(f"there is no program {str(program)!r}; leave the option out to have it built")
    with tempfile.TemporaryDirectory() as directory:
        path = program or cmake_program(_TARGET, Path(directory))
        child = subprocess.run([path.resolve(), str(count), str(rounds)], stdout=subprocess.PIPE, text=True, check=False)
    print(child.stdout, flush=True)
    if child.returncode:
        raise AspenError(f"{path} ended with status {child.returncode}; its messages are above")
    if json is not None:
        write_record(json, {"benchmark": "scheduler", "results": parse(child.stdout)})
    return 0


def parse(text: str) -> list[dict[str, Any]]:
    """The program's lines as plain data: graph, variant, nanoseconds a tile."""
    rows: list[dict[str, Any]] = []
    graph = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"\s+(.+?)\s+min\s+([\d.]+)\s+median\s+([\d.]+) ns a tile", line):
            rows.append({"graph": graph, "variant": match[1], "min_ns": float(match[2]), "median_ns": float(match[3])})
        else:
            graph = line.partition(":")[0]
    return rows
