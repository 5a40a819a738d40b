"""Programs in CUDA, beside this file: what launches, copies and parts of a GPU cost. nvcc builds them, with or without a GPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from aspen_jax.cache import disk_cache
from aspen_jax.errors import AspenError, InputError
from benchmarks.gpu.lock import timing

PROGRAMS = ("launches", "copies")

_SOURCES = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O3")
_LARGEST_PROGRAM = 1 << 26
_LONGEST_MESSAGE = 300


class NotBuilt(AspenError):
    """A program is not in the cache, and cannot be built here."""


def built(name: str, architecture: str) -> bytes:
    """A program as nvcc builds it; from the cache where it was built before.

    Raises:
        NotBuilt: it is not in the cache, and there is no nvcc.
        AspenError: nvcc refuses it, or it cannot be kept.
    """
    sources = [(_SOURCES / file).read_text() for file in (f"{name}.cu", "report.h")]
    digest = hashlib.sha256("\0".join([architecture, *_FLAGS, *sources]).encode()).hexdigest()[:40]
    file = disk_cache.cache_folder() / "cuda" / f"{name}-{digest}"
    try:
        return disk_cache.read(file, _LARGEST_PROGRAM, ours=True)
    except OSError:
        program = _build(name, architecture)
    try:
        disk_cache.write(file, program)
    except OSError as error:
        message = f"{name} cannot be kept in {str(file.parent)!r}: {error}; set {disk_cache.CACHE_VARIABLE}"
        raise AspenError(message) from error
    return program


def _build(name: str, architecture: str) -> bytes:
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise NotBuilt(f"{name} is absent: nvcc is not on PATH; put it there, or pass a folder of built programs by --programs")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / name
        command = [compiler, *_FLAGS, f"-arch={architecture}", str(_SOURCES / f"{name}.cu"), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AspenError(f"{name} is absent: nvcc refuses it for {architecture}: {_last(done.stderr + done.stdout)}")
        return program.read_bytes()


def check_folder(folder: Path) -> None:
    """Refuse a folder without programs, before much is done.

    Raises:
        InputError: it has none.
    """
    missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise InputError(f"there is no program {missing[0]!r} in {str(folder)!r}; build it from benchmarks/gpu/{missing[0]}.cu")


def figures(name: str, architecture: str, folder: Path | None, timeout: float | None) -> dict[str, Any]:
    """What a program reports, and why it ended early if it did. Nobody else takes times meanwhile.

    Args:
        name: in `PROGRAMS`.
        architecture: what it is built for.
        folder: where it is, if not to be built.
        timeout: seconds that it may take.

    Raises:
        AspenError: it cannot be built or started.
    """
    with tempfile.TemporaryDirectory() as own:
        program = Path(own) / name if folder is None else folder / name
        if folder is None:
            program.write_bytes(built(name, architecture))
            program.chmod(0o700)
        with timing():
            try:
                done = subprocess.run([str(program.resolve())], capture_output=True, text=True, check=False, timeout=timeout)
            except OSError as error:
                raise AspenError(f"{name} is absent: it cannot be started: {error}") from error
            except subprocess.TimeoutExpired as error:
                raise AspenError(f"{name} took longer than {timeout:.0f} s and was ended") from error
    try:
        found: dict[str, Any] = {"figures": [json.loads(line) for line in done.stdout.splitlines()]}
    except ValueError as error:
        raise AspenError(f"{name} does not print lines of JSON ({error}); build it from benchmarks/gpu/{name}.cu") from error
    if done.returncode:
        found["error"] = f"{name} ended with status {done.returncode}: {_last(done.stderr)}"
    return found


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_MESSAGE] if lines else "it left no message"
