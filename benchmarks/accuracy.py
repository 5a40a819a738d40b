"""Networks against float64: how far aspen and `jax.jit` are off, by default and in the highest precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from aspen_jax import aspen
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Model, Size

# Of the largest output.
LIMITS = {"default": 1e-4, "highest": 1e-5}


@benchmark
def accuracy(
    models: Models = ("resnet50", "mobilenet_v2"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    workers: int | None = None,
    json: File = None,
) -> Run:
    """Largest errors of the outputs of whole models, of their largest element, against the same model in float64.

    Args:
        models: names in benchmarks/zoo/catalogue.py, and in keras.applications.
        size: of the inputs.
        workers: cores to use; all usable ones by default.
        json: where to write the figures as well.

    Returns:
        1 where aspen is off by more than 1e-4 by default, or by more than 1e-5 in the highest precision, and by more than
        twice what `jax.jit` is: some networks magnify the rounding of float32 itself.
    """
    columns = [f"{precision} {side}" for precision in LIMITS for side in SIDES]
    table = Table("", {"model": "", **dict.fromkeys(columns, ".1e")})
    found = [errors(zoo.build(name, size).calibrated()) for name in tqdm(models, disable=None)]
    for name, of_model in zip(models, found, strict=True):
        table.add(name, *of_model.values())
    yield table
    yield int(any(map(_too_far, found)))


def _too_far(found: dict[tuple[str, str], float]) -> bool:
    # Not "any is greater": an error that is no number is too far as well.
    return not all(found[name, "aspen"] <= max(limit, 2 * found[name, "jax.jit"]) for name, limit in LIMITS.items())


def _aspen(model: Model) -> Callable[..., Any]:
    # Closed over, as its users have it: prepared weights take other kernels than those that come as arguments.
    return jax.jit(aspen(functools.partial(model.apply, model.params)))


def _jit(model: Model) -> Callable[..., Any]:
    return functools.partial(jax.jit(model.apply), model.params)


SIDES: dict[str, Callable[[Model], Callable[..., Any]]] = {"aspen": _aspen, "jax.jit": _jit}


def errors(model: Model) -> dict[tuple[str, str], float]:
    """The largest error of any output for each precision and side, as a share of that output's largest element."""
    with jax.enable_x64(True):
        double = model.cast(np.float64)
        exact = _outputs(_jit(double), double)
    found = {}
    for precision in LIMITS:
        for side, make in SIDES.items():
            with jax.default_matmul_precision(precision):
                ours = _outputs(make(model), model)
            pairs = zip(ours, exact, strict=True)
            found[precision, side] = max(float(np.max(np.abs(one - other)) / np.max(np.abs(other))) for one, other in pairs)
    jax.clear_caches()  # whose constants are the weights
    return found


def _outputs(function: Callable[..., Any], model: Model) -> list[np.ndarray]:
    return [np.asarray(output, np.float64) for output in jax.tree.leaves(function(*model.inputs))]
