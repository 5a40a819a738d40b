"""Kernels in C++ from outside of the package."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from aspen_jax import _engine
from aspen_jax.cache.shared_library import shared_library
from aspen_jax.errors import InputError
from aspen_jax.files import read_file
from aspen_jax.ops.family import set_version

# For this processor alone: the library never leaves it.
_OPTIONS = ("-O3", "-march=native")


def register_kernels(path: str | os.PathLike[str]) -> list[str]:
    """Let ops name the kernels of a C++ file, or of a shared library, as their `kernel`. It is code, and is trusted as such.

    A file that is no `.so` is compiled for this processor by this machine's compiler. What was compiled is kept on
    disk, by the contents of the file and of all that it includes.

    Args:
        path: it ends in `ASPEN_KERNELS({"name", prepare}, ...);`, as "aspen_jax/engine/kernel_library.h" declares it.

    Returns:
        The names of its kernels.

    Raises:
        InputError: there is no C++ compiler, the file does not compile, or shows no kernels; a kernel of the name is there; the
            library was compiled for another version of aspen_jax.
        OSError: the file cannot be read.
    """
    source = Path(path)
    with contextlib.nullcontext(source) if ".so" in source.suffixes else shared_library(source, *_OPTIONS) as library:
        version = hashlib.sha256(read_file(library)).hexdigest()
        try:
            names = _engine.register_kernels(str(library))
        except InputError as error:
            raise InputError(str(error).replace(str(library), str(source))) from None
    for name in names:
        set_version(name, version)
    return names
