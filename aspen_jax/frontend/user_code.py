"""Which lines of a program are the user's: neither Python's own, nor of an installed package, nor JAX's or ours."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path, PurePath
from typing import Any

import jax
import jaxlib

_TRACERS = [Path(__file__).parents[1], *(Path(file).parent for file in (jax.__file__, jaxlib.__file__))]
_PYTHON = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
_INSTALLED = {"site-packages", "dist-packages"}


@functools.lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Whether a file of this name, as frames of a traceback have it, is the user's."""
    path = PurePath(filename)
    return _is_callers(filename) and _INSTALLED.isdisjoint(path.parts) and not any(map(path.is_relative_to, _PYTHON))


@functools.lru_cache(maxsize=1024)
def _is_callers(filename: str) -> bool:
    return not filename.startswith("<frozen") and not any(map(PurePath(filename).is_relative_to, _TRACERS))


def line_of(traceback: Any, function: Any = None) -> str:
    """The innermost line of the user's, or of a library's where there is none, as "file:line"; "" where nothing is known.

    Args:
        traceback: `source_info.traceback` of an equation, or None.
        function: `debug_info` of the function that the equation belongs to, or None. Lines outside of it are not looked at: JAX
            traces a function once, so the traceback goes on with the first of its callers.
    """
    first = ""
    for frame in traceback.frames if traceback is not None else ():
        if is_users(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
        is_outermost = (
            function is not None
            and frame.file_name == function.func_filename
            and frame.function_name.rpartition(".")[2] == function.func_name.rpartition(".")[2]
        )
        if is_outermost:
            return ""
        if not first and _is_callers(frame.file_name):
            first = f"{frame.file_name}:{frame.line_num}"
    return first
