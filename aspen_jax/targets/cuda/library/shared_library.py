"""What calls of NVIDIA's libraries share: whether one is here, as pip or the system installs it, and numbers of types."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

# ElementType in cuda/kernels/kernel_shape.h.
ELEMENT_TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}


@functools.cache
def is_there(*names: str) -> bool:
    """Whether this process has a library of one of these names, or finds it where pip puts it. The engine then finds it, too."""
    places = importlib.util.find_spec("nvidia")
    folders = () if places is None else map(Path, places.submodule_search_locations or ())
    installed = [str(file) for folder in folders for name in names for file in folder.glob(f"*/lib/{name}")]
    for name in (*names, *installed):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False
