"""C++ files of users as shared libraries, compiled by this machine's compiler and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aspen_jax
from aspen_jax.cache import disk_cache
from aspen_jax.errors import InputError
from aspen_jax.files import SMALL, read_file

# Bytes of a library.
_LARGEST = 1 << 26


@contextlib.contextmanager
def shared_library(source: Path, *options: str) -> Iterator[Path]:
    """The library of a C++ file that may include headers of the package, such as "aspen_jax/engine/kernel_library.h".

    It is compiled once for the compiler, the options, the processor, and what the compiler makes of the file and all that it
    includes. The path is that of a copy that nobody else can write, to be loaded in the block: it is gone behind it.

    Args:
        source: the file.
        *options: for the compiler, beside the standard.

    Raises:
        InputError: there is no C++ compiler, the file does not compile, or the cache folder cannot be written.
        OSError: the file cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"{source.stem}.so"
        library.write_bytes(_compiled(source, options, Path(folder)))
        yield library


def _compiled(source: Path, options: tuple[str, ...], folder: Path) -> bytes:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise InputError(f"{source} needs a C++ compiler, and none was found: install g++ 12 or newer, or set CXX")
    read_file(source, SMALL)  # an error of the operating system says more than the compiler's
    command = [*compiler.split(), "-std=c++20", "-fPIC", *options]

    def run(*more: str) -> str:
        try:
            found = subprocess.run([*command, *more], capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise InputError(f"the compiler {compiler} cannot be run: {error}; set CXX to another") from None
        if found.returncode != 0:
            raise InputError(f"{source} does not compile:\n{found.stderr.strip()}")
        return found.stdout

    text = run("-E", f"-I{Path(aspen_jax.__path__[0]).parent}", str(source.absolute()))
    # Lines that begin with # only say where the others come from.
    said = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# "))
    processor = run("-dM", "-E", "-x", "c++", os.devnull)
    key = hashlib.sha256("\0".join([*command, run("--version"), processor, said]).encode()).hexdigest()
    kept = disk_cache.cache_folder() / "libraries" / f"{key[:32]}.so"
    with contextlib.suppress(OSError):  # not there, or not to be trusted as code
        return disk_cache.read(kept, _LARGEST, ours=True)
    whole, output = folder / "library.ii", folder / "compiled.so"
    whole.write_text(text)
    run("-shared", str(whole), "-o", str(output))
    content = output.read_bytes()
    try:
        disk_cache.write(kept, content)
    except OSError as error:
        raise InputError(
            f"what was compiled of {source} cannot be kept in {kept.parent}: {error}; set {disk_cache.CACHE_VARIABLE} to a "
            "folder that you can write"
        ) from None
    return content
