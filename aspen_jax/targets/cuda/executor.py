"""How a graph is given to a GPU, and who decides."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable

from aspen_jax.errors import InputError
from aspen_jax.primitive.choices import Choices

EXECUTOR_VARIABLE = "ASPEN_CUDA_EXECUTOR"


class Executor(enum.IntEnum):
    """What runs a graph on the GPU, by the numbers of cuda/executable.h."""

    STREAM = 0
    GRAPH = 1


# By name; None: by XLA, as if the call were not decorated.
EXECUTORS = {"xla": None, "stream": Executor.STREAM, "graph": Executor.GRAPH}


def chosen_executor(choices: Choices, fastest: Callable[[], str]) -> str:
    """What runs a call on a GPU, as a name in `EXECUTORS`.

    What was decided for the call stays so, and device="cpu" is never run by us on a GPU. Then ASPEN_CUDA_EXECUTOR decides where
    it is set. Otherwise "cuda" takes CUDA graphs, and "auto" the fastest.

    Args:
        choices: of the call.
        fastest: gives the name of what was, or is thought to be, the fastest, if that is asked for.

    Raises:
        InputError: the environment variable names no executor.
    """
    wanted = os.environ.get(EXECUTOR_VARIABLE)
    if wanted is not None and wanted not in EXECUTORS:
        raise InputError(f"{EXECUTOR_VARIABLE}={wanted!r} is no executor; choose one of {', '.join(map(repr, EXECUTORS))}")
    if choices.executor is not None:
        return choices.executor
    if choices.device == "cpu":
        return "xla"
    if wanted is not None:
        return wanted
    return "graph" if choices.device == "cuda" else fastest()
