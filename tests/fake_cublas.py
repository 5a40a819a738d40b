"""The fake of cublasLt (fake_cublas.cc), compiled and loaded: what asks for libcublasLt.so.13 from now on gets it."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

from aspen_jax.cuda.library import is_there
from tests import cuda_host, fake_cuda


@functools.cache
def load() -> ctypes.CDLL:
    """The fake, which gives its work to the fake of the driver."""
    fake_cuda.load()
    is_there()  # remembers what is true without the fake, which other tests of this process go by
    library = Path(tempfile.mkdtemp(prefix="aspen-fake-cublas-")) / "libcublasLt.so.13"
    source = Path(__file__).with_name("fake_cublas.cc")
    command = [str(cuda_host.COMPILER), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{cuda_host.ROOT}", "-Wl,-soname,libcublasLt.so.13", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
