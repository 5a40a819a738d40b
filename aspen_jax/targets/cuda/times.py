"""What was measured on this GPU: for a function, how long it takes by XLA and by each executor. It is kept on disk.

The file belongs to one kind of GPU and one version of JAX and of this package. A function is known again by its graphs and their
code, which change with the cost model and the kernels: what was measured of others does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jaxlib

import aspen_jax
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.lowering.compile import Compiled, Part
from aspen_jax.targets.cuda.code.image import code_hash
from aspen_jax.targets.cuda.device import card
from aspen_jax.targets.cuda.executor import EXECUTORS

_VERSION = 1

Times = Mapping[str, float]  # seconds a call, by names in EXECUTORS


def key(compiled: Compiled) -> str:
    """A key that is equal for functions that are the same work for a GPU.

    Raises:
        UnsupportedOp: there is no CUDA code for some op.
    """
    digest = hashlib.sha256()
    for function in (compiled, *compiled.bodies):
        for step in function.steps:
            if isinstance(step, Part):
                digest.update(step.graph_bytes.tobytes())
                digest.update(code_hash(step.program.ops, step.graph))
            else:
                shapes = [atom.aval.str_short() for atom in step.equation.invars]
                digest.update(repr((step.equation.primitive.name, shapes)).encode())
    return digest.hexdigest()[:32]


def known() -> dict[str, Times]:
    """What was measured on this process's GPU, by `key`."""
    kind = card()
    return {} if kind is None else _file(kind).read(_times)


def remember(name: str, times: Times) -> Path | None:
    """Keeps the times of the function with this key, for this process's GPU.

    Returns:
        the file, or None where there is no GPU or it could not be written, of which a warning tells.
    """
    kind = card()
    if kind is None:
        return None
    return _file(kind).update({name: _times(times)}, _times, dict)[1]


def _times(entry: Any) -> Times:
    times = {name: float(seconds) for name, seconds in entry.items()}
    if times.keys() != EXECUTORS.keys() or not all(0 < seconds < float("inf") for seconds in times.values()):
        raise ValueError(f"an entry is {entry!r}")
    return times


def _file(kind: str) -> MeasurementFile:
    machine = {"version": _VERSION, "aspen_jax": aspen_jax.__version__, "jaxlib": jaxlib.__version__, "card": kind}
    return MeasurementFile("cuda/times", machine)
