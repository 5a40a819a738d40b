"""The part `heads` of `python -m benchmarks split`: predicted times of heads beside those of heads that run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from aspen_jax.cost.timing import check_rounds, duration
from aspen_jax.errors import InputError
from benchmarks.markdown import table
from benchmarks.options import Names
from benchmarks.picture import save_curves
from benchmarks.split import networks, plans, trained
from benchmarks.split.plans import Prediction

PARTS = ("heads",)

_BATCH = 16  # images of a trained network, which is too small to be timed with one


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the part `heads`.

    Attributes:
        networks: of the zoo, such as mobilenet_v2 or resnet50_at_128; or trained ones: digits, mnist, faces.
        cuts: heads that are timed of each network, beside the whole function.
        rounds: how often each is timed; the fastest counts.
    """

    networks: Names = ("squeezenet1_1", "mobilenet_v2", "resnet18", "resnet50", "inception_v3", "vgg11_bn")
    cuts: int = 12
    rounds: int = 20


def run(parts: Sequence[str], options: Options, pictures: Path | None) -> dict[str, Any]:
    """Print the tables, draw the picture, and give the figures.

    Raises:
        InputError: an option does not fit.
    """
    if "heads" not in parts:
        return {}
    check_rounds(options.rounds)
    if options.cuts < 1 or not options.networks:
        raise InputError(f"{options} asks for no heads; take 1 cut or more of some networks")
    found = {
        name: plans.predictions(*_function(name), options.cuts, options.rounds)
        for name in tqdm(options.networks, desc="networks", disable=None)
    }
    cells = [
        [name, str(item.cut), duration(item.predicted), duration(item.measured), f"{item.predicted / item.measured:.2f}"]
        for name, items in found.items()
        for item in items
    ]
    header = ["network", "cut", "predicted", "measured", "quotient"]
    print("\n".join(["Times of heads, from one timeline of the whole function and alone", "", *table(header, cells), ""]))
    print("\n".join([*table(["network", "heads", "whole", "median error", "largest error"], _errors(found)), ""]), flush=True)
    if pictures is not None:
        curves = {name: [(1e3 * item.measured, 1e3 * item.predicted) for item in items] for name, items in found.items()}
        save_curves(pictures / "heads.png", "Times of heads", "measured, ms", "predicted, ms", curves, log_x=True, log_y=True)
    return {"heads": {name: [dataclasses.asdict(item) for item in items] for name, items in found.items()}}


def _function(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A network and its arguments."""
    if name in trained.NETWORKS:
        network = trained.NETWORKS[name]()
        return network.apply, (network.images[:_BATCH],)
    return networks.network(name)


def _errors(found: dict[str, list[Prediction]]) -> list[list[str]]:
    """Rows for each network, and one for all: number of heads, the whole function's time, median and largest relative error."""
    errors = {name: plans.relative_errors(items) for name, items in found.items()}
    whole = {name: duration(items[-1].measured) for name, items in found.items()}
    rows = {**errors, "all": np.concatenate(list(errors.values()))}
    return [
        [name, str(len(item)), whole.get(name, ""), f"{np.median(item):.1%}", f"{item.max():.1%}"] for name, item in rows.items()
    ]
