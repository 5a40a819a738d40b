"""The fake of cublasLt (fake_cublas.cc), compiled and loaded: what asks for libcublasLt.so.13 from now on gets it."""

from __future__ import annotations

import ctypes
import functools

from aspen_jax.targets.cuda.library.cublas import is_there
from tests.targets.cuda import fake_cuda


@functools.cache
def load() -> ctypes.CDLL:
    """The fake, which gives its work to the fake of the driver."""
    fake_cuda.load()
    is_there()  # remembers what is true without the fake, which other tests of this process go by
    return fake_cuda.played("fake_cublas.cc", "libcublasLt.so.13")
