"""Models as they are compiled for GPUs, and how far one side's outputs are from another's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from aspen_jax.lowering.compile import Compiled, Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda.target import CudaTarget
from benchmarks.zoo.model import Model

REFERENCE = "float32 on the CPU"  # a side in files of outputs


def jaxpr_of(model: Model) -> ClosedJaxpr:
    """The model as a function of its inputs: parameters are constants of it."""
    return jax.make_jaxpr(functools.partial(model.apply, model.arguments[0]))(*model.arguments[1:])


def compiled_for_cuda(jaxpr: ClosedJaxpr) -> Compiled:
    """The function for a GPU, nothing of it left to XLA.

    Raises:
        UnsupportedError: an op has no CUDA code.
    """
    return compile_jaxpr(jaxpr, Options(Choices(strict=True, device="cuda"), CudaTarget.here()))


def on_cpu(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function gives on the CPU, in the highest precision."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("highest"):
        return function(*arguments)


def outputs_on_cpu(model: Model) -> list[np.ndarray]:
    """What XLA gives for the model on the CPU."""
    arguments = jax.tree.map(np.asarray, model.arguments)
    return [np.asarray(item) for item in jax.tree.leaves(on_cpu(jax.jit(model.apply), *arguments))]


def largest_error(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The largest `error` of a side's outputs, nan if one is."""
    return float(np.max([error(item, other) for item, other in zip(ours, theirs, strict=True)], initial=0))


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, as a share of the largest value; nan where one side has a NaN and the other not."""
    ours, theirs = ours.astype(np.float64), np.asarray(theirs).astype(np.float64)
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("nan")
    return float(np.nanmax(np.abs(ours - theirs), initial=0) / np.nanmax(np.abs(theirs), initial=1e-30))


def save_outputs(path: Path, sides: Mapping[str, Sequence[Any]]) -> None:
    """Write the outputs of sides into a file, for `read_outputs`; those of 16 bits as float32."""
    arrays = {f"{side}:{number}": np.asarray(item) for side, items in sides.items() for number, item in enumerate(items)}
    np.savez(path, **{name: _wide(array) for name, array in arrays.items()})  # pyright: ignore[reportArgumentType]


def read_outputs(path: Path) -> dict[str, list[np.ndarray]]:
    """The outputs of each side in a file."""
    sides: dict[str, list[np.ndarray]] = {}
    with np.load(path) as content:
        for name in content.files:
            sides.setdefault(name.rpartition(":")[0], []).append(content[name])
    return sides


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array
