"""The fake of CUDA's driver (fake_cuda.cc), compiled and loaded: what asks for libcuda.so.1 from now on gets it."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Program
from aspen_jax.targets.cuda.code.image import Code, distinct
from tests.targets.cuda import cuda_host


@functools.cache
def load() -> ctypes.CDLL:
    """The fake. Where the real driver is loaded it would come too late."""
    return played("fake_cuda.cc", "libcuda.so.1")


def played(source: str, name: str) -> ctypes.CDLL:
    """A library of NVIDIA's played by a source of this folder: what asks for it by its name from now on gets the fake."""
    library = Path(tempfile.mkdtemp(prefix="aspen-fake-")) / name
    command = [str(cuda_host.COMPILER), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{cuda_host.ROOT}", f"-Wl,-soname,{name}", str(Path(__file__).with_name(source)), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def code_of(program: Program, graph: TileGraph | None = None, *, warpgroups: bool = False) -> Code:
    """The code of a program's ops for the fake: a library of the host, of a GPU that multiplies by warpgroups or of another.

    `graph`: says which ops are launched together, as for `compile_ops`.
    """
    found = distinct(program.ops, graph)
    library = cuda_host.compiled(cuda_host.source(found.ops, found.most_ops, warpgroups=warpgroups))
    numbers = (np.array(item, np.int32) for item in (found.numbers, found.launched_with))
    return Code(np.frombuffer(library.read_bytes(), np.uint8), *numbers)
