"""Latency of folded networks beside each other, by aspen and by XLA."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from aspen_jax import aspen
from aspen_jax.cost.timing import Timing, interleaved
from aspen_jax.report.comparison import PLAIN, TILED
from benchmarks.benchmark import check_agreement
from benchmarks.zoo.model import of_network
from benchmarks.zoo.network.network import Network


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a network is.

    Attributes:
        batch: images a call.
        parameters: how many numbers are learned.
        timings: of a call, for `PLAIN` and `TILED`.
    """

    batch: int
    parameters: int
    timings: dict[str, Timing]

    def rate(self, side: str) -> float:
        """Images a second, in the median round."""
        return self.batch / self.timings[side].median


def speeds(networks: Mapping[str, Network], rounds: int) -> dict[str, Speed]:
    """Time networks in turns, all of them and both sides in each round. Weights are drawn: times do not depend on them.

    Raises:
        Disagreement: results of the two sides differ.
    """
    calls: dict[str, Callable[[], Any]] = {}
    for name, network in networks.items():
        model = of_network(name, network)
        plain = functools.partial(jax.jit(model.apply), *model.arguments)
        tiled = functools.partial(jax.jit(aspen(functools.partial(model.apply, model.params))), *model.inputs)
        check_agreement(name, {PLAIN: plain, TILED: tiled})
        calls |= {f"{PLAIN} {name}": plain, f"{TILED} {name}": tiled}
    timings = interleaved(calls, rounds)
    return {
        name: Speed(
            next(iter(network.inputs.values())).shape[0],
            network.number_of_parameters(),
            {side: timings[f"{side} {name}"] for side in (PLAIN, TILED)},
        )
        for name, network in networks.items()
    }
