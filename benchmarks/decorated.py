"""Whole models as users decorate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aspen_jax import aspen
from aspen_jax.cost.timing import check_rounds
from aspen_jax.report.cores import share_cores
from benchmarks import zoo
from benchmarks.zoo.model import Model, Size


def decorated(names: Sequence[str], size: Size, rounds: int, workers: int | None) -> Iterator[tuple[Model, Callable[..., Any]]]:
    """Calibrated models beside their decorated functions, one by one, on as many cores as there are to be workers.

    Raises:
        InputError: there is no such model, or rounds or workers are too few.
    """
    check_rounds(rounds)
    share_cores(workers)
    for name in names:
        model = zoo.build(name, size).calibrated()
        yield model, aspen(model.apply, weights=0)
