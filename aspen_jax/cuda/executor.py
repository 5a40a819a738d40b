"""How a graph is given to a GPU, and who decides."""

from __future__ import annotations

import enum
import os

from aspen_jax.errors import InputError

EXECUTOR_VARIABLE = "ASPEN_CUDA_EXECUTOR"


class Executor(enum.IntEnum):
    """As in cuda/executable.h."""

    STREAM = 0
    GRAPH = 1


_NAMES = {"xla": None, "stream": Executor.STREAM, "graph": Executor.GRAPH}


def chosen_executor(device: str) -> Executor | None:
    """How calls are run on a GPU; None: by XLA, as if they were not decorated.

    ASPEN_CUDA_EXECUTOR decides where it is set, but for device="cpu". Otherwise "cuda" takes CUDA graphs and "auto" stays with
    XLA, because no graph of ours has been timed beside XLA's on a GPU yet.

    Raises:
        InputError: the environment variable names no executor.
    """
    wanted = os.environ.get(EXECUTOR_VARIABLE)
    if wanted is not None and wanted not in _NAMES:
        raise InputError(f"{EXECUTOR_VARIABLE}={wanted!r} is no executor; choose one of {', '.join(map(repr, _NAMES))}")
    if device == "cpu":
        return None
    if wanted is not None:
        return _NAMES[wanted]
    return Executor.GRAPH if device == "cuda" else None
