"""False sharing between the scheduler's threads, from a trace of every access to memory (cpp/sharing.cc under valgrind)."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aspen_jax.errors import AspenError, InputError
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.coherence import simulate
from benchmarks.native import cmake_program
from benchmarks.options import File

_TARGET = "sharing"
_OUTSIDE = "outside the program"  # the C library


@benchmark
def sharing(rounds: int = 32, program: File = None, json: File = None) -> Run:
    """Cache misses a tile by true and by false sharing while two workers run graphs of empty tiles, and where they come from.

    Valgrind traces every load and store, one thread at a time and another after each tile; the caches are simulated: no counters
    of the processor are needed, and the order of the accesses is valgrind's, not the hardware's. The program checks before that
    each tile runs once, after its parents.

    Args:
        rounds: how often each graph runs.
        program: the program, already built with debug information; it is built in a temporary directory by default.
        json: where to write the figures as well.
    """
    if program is not None and not program.is_file():
        raise InputError(f"there is no program {str(program)!r}; leave the option out to have it built")
    valgrind, addr2line = find_tool("valgrind", package="valgrind"), find_tool("addr2line", package="binutils")
    version = subprocess.run([valgrind, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        path = (program or cmake_program(_TARGET, Path(directory), "RelWithDebInfo")).resolve()
        graphs = _simulate_program(valgrind, path, rounds)
        names = _names(addr2line, path, {pair[at] for graph in graphs for pair in graph["pairs"] for at in ("writer", "victim")})
    for graph in graphs:
        yield _table({**graph, "pairs": by_name(graph["pairs"], names)}, version)


def by_name(pairs: Iterable[dict[str, Any]], names: dict[int, str]) -> list[dict[str, Any]]:
    """Pairs of addresses as `simulate` gives them as pairs of names, most misses first; "lines" becomes their number."""
    found: dict[tuple[str, str], tuple[int, set[int]]] = {}
    for pair in pairs:
        key = names[pair["writer"]], names[pair["victim"]]
        misses, lines = found.get(key, (0, set()))
        found[key] = misses + pair["misses"], lines.union(pair["lines"])
    rows = [
        {"writer": writer, "victim": victim, "misses": misses, "lines": len(lines)}
        for (writer, victim), (misses, lines) in found.items()
    ]
    return sorted(rows, key=lambda row: -row["misses"])


def parse_names(text: str) -> dict[int, str]:
    """Function, file and line of addresses, from what `addr2line -a -i -f -C` writes.

    Of functions that were inlined into each other, the innermost that is not the standard library's.
    """
    names = {}
    for block in re.split(r"^(?=0x)", text, flags=re.MULTILINE)[1:]:
        address, *rest = block.splitlines()
        ours = [
            f"{_short(function)} {Path(place.partition(' ')[0]).name}"
            for function, place in zip(rest[::2], rest[1::2], strict=True)
            if not place.startswith(("/usr/", "??"))
        ]
        names[int(address, 16)] = ours[0] if ours else _OUTSIDE
    return names


def _short(function: str) -> str:
    """The function's name without namespace, parameters and what stands before it."""
    name = re.sub(r"\(anonymous namespace\)::|\[abi:\w+\]", "", function)
    return re.sub(r"[(<].*", "", name).rpartition(" ")[2].removeprefix("aspen::")


def find_tool(tool: str, package: str) -> str:
    """The path of a tool that this package of Debian has."""
    path = shutil.which(tool)
    if path is None:
        raise AspenError(f"{tool} is needed for this benchmark and was not found; install it (Debian: {package})")
    return path


def _simulate_program(valgrind: str, program: Path, rounds: int) -> list[dict[str, Any]]:
    options = ["--tool=lackey", "--trace-mem=yes", "--trace-sched=yes", "--fair-sched=yes"]
    command = [valgrind, *options, str(program), str(rounds)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        graphs = simulate(child.stderr)
    if child.returncode or not graphs:
        raise AspenError(f"{' '.join(command)} ended with status {child.returncode}, {len(graphs)} graphs; run it to see why")
    return graphs


def _names(addr2line: str, program: Path, addresses: Iterable[int]) -> dict[int, str]:
    command = [addr2line, "-a", "-i", "-f", "-C", "-e", str(program)]
    text = "".join(f"{address:#x}\n" for address in addresses)
    return parse_names(subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _table(graph: dict[str, Any], version: str) -> Table:
    tiles = graph["tiles"] * graph["runs"]
    kinds = ", ".join(f"{graph[kind] / tiles:.3f} by {kind} sharing" for kind in ("true", "false"))
    title = f"{graph['graph']}: {graph['tiles']} tiles, {graph['runs']} runs; misses a tile: {kinds}; {version}"
    table = Table(title, {"written at": "", "missed at": "", "misses": "d", "a tile": ".3f", "lines": "d"})
    for row in graph["pairs"]:
        table.add(row["writer"], row["victim"], row["misses"], row["misses"] / tiles, row["lines"])
    return table
