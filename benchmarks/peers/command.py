"""The command `python -m benchmarks peers`."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from aspen_jax.errors import AspenError, InputError
from benchmarks import zoo
from benchmarks.benchmark import Run, benchmark
from benchmarks.options import Folder, Models, Names, Sizes
from benchmarks.peers.case import read_case
from benchmarks.peers.match import Match
from benchmarks.peers.picture import draw_speedups, draw_times
from benchmarks.peers.prepared import Prepared
from benchmarks.peers.record import DISAGREES, Answers, of_all, of_model
from benchmarks.peers.sides import ASPEN, SIDES
from benchmarks.zoo.model import Size


@benchmark
def peers(
    models: Models = tuple(zoo.NETWORKS),
    size: Sizes = Size(),  # noqa: B008 - immutable
    threads: int | None = None,
    peers: Names = tuple(SIDES),
    rounds: int = 20,
    timeout: float = 900,
    neighbour: bool = False,
    output: Folder = None,
) -> Run:
    """This package beside other runtimes, on networks with the same weights: first the results, then the times, in turns.

    Args:
        models: the whole zoo by default. A name may end in a size of its own: resnet50:B8 is a batch of 8, bert-base:S480B8 has
            480 tokens too.
        size: of the inputs, where a name has none.
        threads: of every side; as many as there are usable cores by default.
        peers: who takes part beside aspen. What is not installed is reported with what to install.
        rounds: how often each side is timed.
        timeout: seconds that a side may take to answer, compilation included.
        neighbour: whether another process takes half of one of the cores in the rounds.
        output: folder for peers.json, peers.md, peers.png and speedups.png; a new one by default. Where its answers.json has the
            same settings, models that are in it are not measured again.
    """
    assert output is not None  # the skeleton names one
    threads = _check_threads(threads)
    sides = _check_sides(peers)
    cases = [read_case(name, size) for name in models]  # what cannot be built is refused before anything is measured
    settings = {"size": dataclasses.asdict(size), "threads": threads, "peers": sides, "rounds": rounds, "neighbour": neighbour}
    answers = Answers(output, settings)
    # The sides take the first of the usable cores.
    shared = sorted(os.sched_getaffinity(0))[threads - 1] if neighbour else None
    left = sum(case.name not in answers.models for case in cases)
    with tqdm(total=left * Match.steps(sides, rounds), unit="step", smoothing=0.05, dynamic_ncols=True) as bar:
        for case in cases:
            if case.name not in answers.models:
                with tempfile.TemporaryDirectory() as directory:
                    prepared = Prepared(Path(directory), case.network, case.size)
                    answers.keep(case.name, Match(prepared, sides, threads, rounds, timeout, shared, bar).play())
            yield of_model(answers.models[case.name])
    results = [answers.models[case.name] for case in cases]
    yield from of_all(results)
    try:
        for draw, picture in ((draw_times, output / "peers.png"), (draw_speedups, output / "speedups.png")):
            draw(results, picture)
            yield picture
    except AspenError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
    yield 1 if any(side.state == DISAGREES for result in results for side in result.sides.values()) else 0


def _check_threads(threads: int | None) -> int:
    usable = len(os.sched_getaffinity(0))
    if threads is not None and not 1 <= threads <= usable:
        raise InputError(f"{threads} threads are asked for and this process may use {usable} cores; take 1 to {usable}")
    return threads or usable


def _check_sides(peers: tuple[str, ...]) -> list[str]:
    """All sides, aspen first."""
    unknown = sorted(set(peers) - set(SIDES))
    if unknown:
        raise InputError(f"there is no peer {unknown[0]!r}; take some of {', '.join(map(repr, SIDES))}")
    return [side for side in SIDES if side in {*peers, ASPEN}]
