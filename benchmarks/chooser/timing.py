"""The times of a generated part in XLA and in tiles, and the evidence on which the choice between them rests."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.frontend.partition import Tileable
from aspen_jax.lowering.compile import Compiled, Options, Part, compile_jaxpr
from aspen_jax.passes import CHOICE, DISABLE_VARIABLE
from aspen_jax.report.difference import largest_difference
from aspen_jax.targets.cpu.choice import Evidence
from benchmarks.chooser.parts import GeneratedPart

_ROUNDS = 7
_ROUND_S = 0.003


@dataclasses.dataclass(frozen=True)
class Sample:
    """A timed part.

    Attributes:
        kind: which generator made it.
        number: its place among those generated.
        turns: how often its loop runs; the rest is for one turn.
        xla_ns: the shortest time in XLA.
        tiles_ns: the shortest time in tiles.
        xla: amounts of work in XLA.
        tiles: amounts of work in tiles.
        difference: between the results, relative to the largest number.
    """

    kind: str
    number: int
    turns: int
    xla_ns: float
    tiles_ns: float
    xla: Mapping[str, float]
    tiles: Mapping[str, float]
    difference: float

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.xla, self.tiles)


def measured(part: GeneratedPart, number: int) -> Sample | None:
    """Times a part on both sides, in turns.

    Returns:
        None where tiles run nothing of it, as of a loop with too little work.
    """
    with mock.patch.dict("os.environ", {DISABLE_VARIABLE: CHOICE}):
        tiled = jax.jit(aspen(part.function))
        evidence = evidence_of(part)
        if evidence is None:
            return None
        plain = jax.jit(part.function)
        difference = largest_difference(tiled(*part.arguments), plain(*part.arguments))
    times = _shortest([lambda: plain(*part.arguments), lambda: tiled(*part.arguments)])
    xla_ns, tiles_ns = (1e9 * seconds / part.turns for seconds in times)
    return Sample(part.kind, number, part.turns, xla_ns, tiles_ns, evidence.xla, evidence.tiles, difference)


def evidence_of(part: GeneratedPart) -> Evidence | None:
    """The evidence of all that tiles run of a part, in one turn of its loop."""
    compiled = compile_jaxpr(jax.make_jaxpr(part.function)(*part.arguments), Options(chooses=False))
    xla: collections.Counter[str] = collections.Counter()
    tiles: collections.Counter[str] = collections.Counter()
    for evidence in _evidence(compiled):
        xla.update(evidence.xla)
        tiles.update(evidence.tiles)
    return Evidence(dict(xla), dict(tiles)) if tiles else None


def _evidence(compiled: Compiled) -> list[Evidence]:
    found = []
    for step, done in zip(compiled.trace.steps, compiled.steps, strict=True):
        if isinstance(step, Tileable):
            assert isinstance(done, Part)
            options = compiled.options
            repeated = options.choices.is_repeated
            found.append(
                Evidence.of(
                    step,
                    done.program,
                    done.graph,
                    options.target.num_workers,
                    is_whole=not repeated and len(compiled.steps) == 1,
                    is_repeated=repeated,
                    is_body=options.choices.is_body,
                )
            )
        else:
            assert not isinstance(done, Part)
            found += [evidence for _, body in compiled.bodies_of(done) for evidence in _evidence(body)]
    return found


def _shortest(sides: list[Callable[[], Any]]) -> list[float]:
    """Seconds of each side, called in turns."""

    def once(side: Callable[[], Any], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            jax.block_until_ready(side())
        return (time.perf_counter() - start) / repeats

    repeats = [max(1, min(300, int(_ROUND_S / max(once(side, 1), 1e-6)))) for side in sides]
    best = [np.inf] * len(sides)
    for turn in range(_ROUNDS):
        for index in range(len(sides))[:: 1 if turn % 2 else -1]:
            once(sides[index], 1)
            best[index] = min(best[index], once(sides[index], repeats[index]))
    return best
