"""What scheduling a tile costs, in the engine alone, without Python, and beside oneTBB (cpp/scheduler.cc)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from aspen_jax import num_workers
from aspen_jax.errors import AspenError, InputError
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.native import cmake_program
from benchmarks.options import File
from benchmarks.picture import save_curves

_TARGET = "scheduler"


@benchmark
def scheduler(rounds: int = 51, workers: int | None = None, program: File = None, json: File = None, picture: File = None) -> Run:
    """Nanoseconds a tile of graphs of empty tiles (stencil, chain, tree, random), and METG(50%), with 1 to so many workers.

    Beside them Algorithm 1 in a plain loop and, where CMake finds it, oneTBB's flow graph. The program checks that each tile runs
    once, after its parents, before it takes times. METG(50%), of Task Bench, is the shortest tile of a stencil at which the
    workers compute half of the time.

    Args:
        rounds: how often each is timed.
        workers: the most workers; all usable cores by default.
        program: the program, already built; it is built in a temporary directory by default, which takes a while.
        json: where to write the figures as well.
        picture: where to draw the share of the peak over the length of a tile, a PNG, PDF or SVG file.
    """
    if program is not None and not program.is_file():
        raise InputError(f"there is no program {str(program)!r}; leave the option out to have it built")
    with tempfile.TemporaryDirectory() as directory:
        path = program or cmake_program(_TARGET, Path(directory))
        child = subprocess.run([path.resolve(), str(num_workers()), str(rounds)], stdout=subprocess.PIPE, text=True, check=False)
    yield child.stdout
    if child.returncode:
        raise AspenError(f"{path} ended with status {child.returncode}; its messages are above")
    results = parse(child.stdout)
    tiles = Table("", {"graph": "", "variant": "", "min, ns a tile": ".1f", "median, ns a tile": ".1f"}, printed="")
    for row in results["results"]:
        tiles.add(*row.values())
    grains = Table("", {"variant": "", "ns a tile": ".1f", "share of the peak": ".3f", "METG(50%), ns": ".1f"}, printed="")
    for variant, curve in results["grains"].items():
        for grain in curve:
            grains.add(variant, *grain.values(), results["metg_ns"].get(variant))
    yield tiles
    yield grains
    if picture is not None:
        curves = {name: [(grain["tile_ns"], grain["efficiency"]) for grain in curve] for name, curve in results["grains"].items()}
        save_curves(picture, "64x128 three-point stencil", "ns a tile", "share of the peak rate", curves, log_x=True)


def parse(text: str) -> dict[str, Any]:
    """The program's lines as plain data.

    Returns:
        "results", for each graph and variant the nanoseconds a tile; "grains", for each variant the length of tiles that compute
        and their share of the peak rate; "metg_ns", for each variant METG(50%), None where even the longest tiles were too
        short; and "absent", peers that the program was built without.
    """
    found: dict[str, Any] = {"results": [], "grains": {}, "metg_ns": {}, "absent": []}
    graph = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"\s+(.+?)\s+min\s+([\d.]+)\s+median\s+([\d.]+) ns a tile", line):
            times = {"min_ns": float(match[2]), "median_ns": float(match[3])}
            found["results"].append({"graph": graph, "variant": match[1], **times})
        elif match := re.fullmatch(r"\s+(.+?)\s+([\d.]+) ns a tile\s+efficiency ([\d.]+)", line):
            grain = {"tile_ns": float(match[2]), "efficiency": float(match[3])}
            found["grains"].setdefault(match[1], []).append(grain)
        elif match := re.fullmatch(r"\s+(.+?)\s+METG\(50%\) (\S+) ns", line):
            found["metg_ns"][match[1]] = None if "nan" in match[2] else float(match[2])
        elif ": absent" in line:
            found["absent"].append(line.partition(":")[0])
        else:
            graph = line.partition(":")[0]
    return found
