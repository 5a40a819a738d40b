"""C++ parts of benchmarks, built in a temporary directory."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from aspen_jax.errors import AspenError

_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = Path(__file__).parent / "cpp"


def ffi_handler(source: str, symbol: str) -> Any:
    """Compile a source of benchmarks/cpp and give its XLA FFI handler, for `jax.ffi.register_ffi_target`.

    Raises:
        AspenError: there is no C++ compiler, or it fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "library.so"
        compiler = os.environ.get("CXX", "c++")
        flags = ["-std=c++17", "-O2", "-fPIC", "-shared", f"-isystem{jax.ffi.include_dir()}"]
        _run([compiler, *flags, str(_SOURCES / source), "-o", str(library)])
        return jax.ffi.pycapsule(getattr(ctypes.CDLL(str(library)), symbol))  # stays loaded when the file is gone


def cmake_program(target: str, directory: Path, build_type: str = "Release") -> Path:
    """Build a target of the checkout's CMakeLists.txt without the Python module, and give its path.

    Raises:
        AspenError: there is no CMake or no compiler, or the build fails.
    """
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = ["-DASPEN_BUILD_MODULE=OFF", "-DASPEN_BUILD_TESTS=ON", f"-DCMAKE_BUILD_TYPE={build_type}"]
    _run(["cmake", "-S", str(_ROOT), "-B", str(directory), *generator, *options])
    _run(["cmake", "--build", str(directory), "--target", target, "--parallel", str(len(os.sched_getaffinity(0)))])
    return next(path for path in directory.rglob(target) if path.is_file() and os.access(path, os.X_OK))


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except FileNotFoundError as error:
        raise AspenError(f"{command[0]} is needed for this benchmark and was not found; install it") from error
    except subprocess.CalledProcessError as error:
        raise AspenError(f"{' '.join(command)} failed:\n{error.stdout}\nmend that first") from error
