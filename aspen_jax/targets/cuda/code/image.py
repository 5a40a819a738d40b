"""C++ -> code for a GPU, by NVRTC, which CuPy brings; it needs no GPU. What was compiled once is kept on disk."""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspen_jax.cache.disk_cache import CACHE_VARIABLE, cache_folder, read, write
from aspen_jax.errors import AspenError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.headers import header_texts
from aspen_jax.targets.cuda.code.horizontal import launched_with
from aspen_jax.targets.cuda.code.source import kernels, translation_unit

# The part of the standard library that the headers use, which NVRTC does not bring.
_STANDARD = {
    "cstdint": """\
#pragma once
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
""",
    "cstring": "#pragma once\n",
    "cmath": "#pragma once\n",
    "cfloat": "#pragma once\n#define FLT_MAX 3.402823466e+38F\n#define FLT_MIN 1.175494351e-38F\n",
}

_LARGEST_FILE = 1 << 30

OPTIONS = ("-std=c++20", "-default-device")


class CompilerMissing(AspenError):
    """NVRTC is not installed, or CuPy is not, which calls it."""


class Code(NamedTuple):
    """The code of a graph's ops.

    Attributes:
        image: uint8 [bytes], a cubin, or PTX where the architecture is a virtual one.
        kernels: int32 [ops], the number of each op's kernel in it.
        launched_with: int32 [ops], for each op the first of those that are launched with it (horizontal.py).
    """

    image: np.ndarray
    kernels: np.ndarray
    launched_with: np.ndarray


def compile_ops(ops: Sequence[Op], architecture: str, graph: TileGraph | None = None) -> Code:
    """Compiles ops; those whose code is the same share a kernel.

    Args:
        ops: of a program.
        architecture: "sm_90a" and the like, for GPUs of just that kind; "compute_80" for all since.
        graph: of these ops, which says which of them are launched together; None: each op is launched alone.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
        CompilerMissing: NVRTC or CuPy is not installed.
        AspenError: NVRTC refuses the code.
    """
    found = distinct(ops, graph)
    image = compiled(kernels(found.ops, found.most_ops), architecture)
    return Code(np.frombuffer(image, np.uint8), np.array(found.numbers, np.int32), np.array(found.launched_with, np.int32))


class Distinct(NamedTuple):
    """Ops of different code.

    Attributes:
        ops: the first ones of each code.
        most_ops: how many are launched together, of each.
        numbers: for each of all ops which one of these stands for it.
        launched_with: for each of all ops the first of those that are launched with it.
    """

    ops: list[Op]
    most_ops: list[int]
    numbers: list[int]
    launched_with: list[int]


def distinct(ops: Sequence[Op], graph: TileGraph | None = None) -> Distinct:
    """Ops of different code; the arguments are those of `compile_ops`.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    firsts = list(range(len(ops))) if graph is None else launched_with(ops, graph)
    together = collections.Counter(firsts)
    known: dict[tuple[str, int], int] = {}
    found = Distinct([], [], [], firsts)
    for op, first in zip(ops, firsts, strict=True):
        kind = (translation_unit([op], ""), together[first])
        if kind not in known:
            known[kind] = len(known)
            found.ops.append(op)
            found.most_ops.append(kind[1])
        found.numbers.append(known[kind])
    return found


def code_hash(ops: Sequence[Op], graph: TileGraph) -> bytes:
    """A hash that is equal for ops of a graph whose code is the same, with the headers that it stands on.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    found = distinct(ops, graph)
    return hashlib.sha256("\0".join([kernels(found.ops, found.most_ops), *(header_texts().values())]).encode()).digest()


def compiled(source: str, architecture: str) -> bytes:
    """The code of a source that includes the headers of `cuda/kernels/`; from disk where it was compiled before.

    Raises:
        CompilerMissing: NVRTC or CuPy is not installed.
        AspenError: NVRTC refuses the source.
    """
    nvrtc = _nvrtc()
    headers = {**_STANDARD, **header_texts()}
    parts = [
        source,
        architecture,
        *OPTIONS,
        str(nvrtc.getVersion()),
        *(item for pair in sorted(headers.items()) for item in pair),
    ]
    file = cache_folder() / "cuda" / (hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40] + ".bin")
    known = _read(file)
    if known is None:
        known = _compile(nvrtc, source, headers, architecture)[0]
        _write(file, known)
    return known


def compile_log(source: str, architecture: str) -> str:
    """What the assembler says of each kernel: registers, spills, shared memory. Compiles anew.

    Raises:
        CompilerMissing: NVRTC or CuPy is not installed.
        AspenError: NVRTC refuses the source.
    """
    return _compile(_nvrtc(), source, {**_STANDARD, **header_texts()}, architecture, "--ptxas-options=-v")[1]


def _compile(nvrtc: Any, source: str, headers: dict[str, str], architecture: str, *options: str) -> tuple[bytes, str]:
    names, texts = list(headers), list(headers.values())
    program = nvrtc.createProgram(source, "aspen.cu", [text.encode() for text in texts], [name.encode() for name in names])
    try:
        nvrtc.compileProgram(program, [f"-arch={architecture}", *OPTIONS, *options])
        image = nvrtc.getPTX(program) if architecture.startswith("compute") else nvrtc.getCUBIN(program)
        return (image.encode() if isinstance(image, str) else bytes(image)), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise AspenError(f"NVRTC cannot compile for {architecture}: {error}; report it with this log:\n{log[:4000]}") from error
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def _nvrtc() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy's, about parts of CUDA that compiling does not need
            cuda: Any = importlib.import_module("cupy.cuda")
            cuda.nvrtc.getVersion()
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        raise CompilerMissing(
            f"CUDA code cannot be compiled here ({error}); pip install 'aspen_jax[cuda13]', or use device='auto' to stay with XLA"
        ) from error
    return cuda.nvrtc


def _read(file: Path) -> bytes | None:
    try:
        stored = read(file, _LARGEST_FILE, ours=True)
    except OSError:
        return None
    digest, image = stored[:32], stored[32:]
    return image if hashlib.sha256(image).digest() == digest else None


def _write(file: Path, image: bytes) -> None:
    try:
        write(file, hashlib.sha256(image).digest() + image)
    except OSError as error:
        message = f"compiled CUDA code cannot be kept in {str(file.parent)!r}: {error}; set {CACHE_VARIABLE}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
