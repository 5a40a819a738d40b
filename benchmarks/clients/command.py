"""`python -m benchmarks clients`: programs of users, undecorated and decorated."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import jax
import tyro

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.cost.timing import Timing, interleaved, speedup
from aspen_jax.errors import InputError
from aspen_jax.passes import CHOICE, DISABLE_VARIABLE
from aspen_jax.report.difference import largest_difference
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark, samples
from benchmarks.clients import geometry, language, loops, science, vision
from benchmarks.clients.program import CLIENTS, Client
from benchmarks.table import shown

MODULES = (geometry, language, loops, science, vision)  # importing one registers its programs

# Decorated programs may take so much longer: what timing on a shared machine can tell apart.
_LEAST_RATIO = 0.97
# Of the flops that tiles can run in what they are faster at, so many have to stay in tiles.
_LEAST_SHARE = 0.99
# Rounds that `--seconds` asks for at least and at most.
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 200
_SHORTEST_SAMPLE_S = 1e-3
_COLUMNS = {"program": "", "difference": ".1e", "custom calls": "d", "flops in tiles": ".0%"}
_COLUMNS |= dict.fromkeys(("first jit_s", "first decorated_s", "jit_s", "decorated_s"), "s")
_COLUMNS |= {"jit / decorated": ".2f", "of medians": ".2f"}


@benchmark
def clients(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    batch: int = 1,
    rounds: int = 15,
    seconds: float | None = None,
    guard: bool = False,
    workers: int | None = None,
    json: Path | None = None,
) -> Run:
    """Programs of users, written against the libraries that they use: jax.jit(program) against jax.jit(aspen(program)).

    Args:
        names: of programs; all by default. Those whose libraries are absent are left out (pip install 'aspen_jax[clients]').
        batch: how many examples, or times as many particles or rays.
        rounds: how often each side is timed. Times are minima.
        seconds: how long a program is timed; chooses `rounds`, 5 to 200.
        guard: fail where a program becomes slower, or XLA runs what tiles are faster at. Without names, this holds of the
            networks of the other benchmarks too.
        workers: cores for both sides; all usable ones by default.
        json: write all samples to this file.

    Yields:
        Each program as it is timed, then 1 where a program fails or its results differ or, with `guard`, a promise is broken.
    """
    if batch < 1:
        raise InputError(f"the batch is {batch}; take 1 or more")
    if seconds is not None and not seconds > 0:
        raise InputError(f"{seconds} seconds are asked for; take more than 0 (1 gives a fair median)")
    unknown = sorted(set(names) - set(CLIENTS))
    if unknown:
        raise InputError(f"no program is called {', '.join(unknown)}; choose from {', '.join(sorted(CLIENTS))}")
    failed: list[str] = []
    rows = Table("", _COLUMNS, printed="")
    yield f"| {' | '.join(column.removesuffix('_s') for column in _COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
    for name in names or CLIENTS:
        program = CLIENTS[name]
        if program.missing:
            print(f"skipped: {name} needs {', '.join(program.missing)}", file=sys.stderr)
            continue
        try:
            failed += [f"{name}: {reason}" for reason in _measured(program, batch, rounds, seconds, rows, guard=guard)]
        except Exception as error:  # libraries raise what they like, and others are still to be measured
            failed.append(f"{name}: {type(error).__name__}: {error}")
        if rows.rows and rows.rows[-1]["program"] == name:
            yield f"| {' | '.join(shown(rows.rows[-1][column], form) for column, form in _COLUMNS.items())} |"
        jax.clear_caches()
    if guard and not names:
        failed += _networks_left()
    for line in failed:
        print(f"FAILED: {line}", file=sys.stderr)
    yield rows
    yield 1 if failed else 0


def _measured(program: Client, batch: int, rounds: int, seconds: float | None, rows: Table, *, guard: bool) -> Iterator[str]:
    """Adds the row of a program, and says what is wrong with it."""
    try:
        function, arguments = program.make(batch)
    except ImportError as error:
        print(f"skipped: {program.name}: a library that it needs lacks another: {error}", file=sys.stderr)
        return
    arguments = jax.block_until_ready(jax.device_put(arguments))
    plain, decorated = jax.jit(function), jax.jit(aspen(function))
    first = _first_calls(plain, decorated, arguments)
    apart = largest_difference(decorated(*arguments), plain(*arguments))
    share = _share(function, arguments)
    known = program.name, apart, _custom_calls(decorated, arguments), share, *first
    if not apart <= program.tolerance:
        rows.add(*known, *[None] * (len(_COLUMNS) - len(known)))
        yield f"results differ by {apart:.1e} of the largest number"
        return
    rounds = rounds if seconds is None else _rounds_of(seconds, _times(plain, decorated, arguments, 1))
    times = _times(plain, decorated, arguments, rounds)
    if guard and _ratio(times) < _LEAST_RATIO:  # once more, for a neighbour's sake
        times = _times(plain, decorated, arguments, rounds)
    minima = [item.minimum for item in times.values()]
    rows.add(*known, *minima, _ratio(times), speedup(times["jit"], times["decorated"]), **samples(times))
    if guard and _ratio(times) < _LEAST_RATIO:
        yield f"decorated it is slower, jit / decorated {_ratio(times):.2f}"
    if guard and program.is_faster:
        possible = _share_without_choice(function, arguments)
        if share < _LEAST_SHARE * possible:
            yield f"{share:.0%} of its flops run in tiles, of {possible:.0%} that could"


def _custom_calls(decorated: Any, arguments: Any) -> int:
    """How many calls into the engine the compiled program has, those in a loop once."""
    text = decorated.lower(*arguments).compile().as_text() or ""
    return text.count(f'custom_call_target="{CUSTOM_CALL_TARGET}"')


def _rounds_of(seconds: float, once: Mapping[str, Timing]) -> int:
    """How many rounds take so long, by the times of one."""
    of_round = sum(max(_SHORTEST_SAMPLE_S, timing.minimum) for timing in once.values())
    return min(max(int(seconds / of_round), _FEWEST_ROUNDS), _MOST_ROUNDS)


def _ratio(times: Mapping[str, Timing]) -> float:
    return times["jit"].minimum / times["decorated"].minimum


def _first_calls(plain: Any, decorated: Any, arguments: Any) -> list[float]:
    """Seconds of the first calls, which compile."""
    taken = []
    for side in (plain, decorated):
        start = time.perf_counter()
        jax.block_until_ready(side(*arguments))
        taken.append(time.perf_counter() - start)
    return taken


def _times(plain: Any, decorated: Any, arguments: Any, rounds: int) -> dict[str, Timing]:
    return interleaved({"jit": lambda: plain(*arguments), "decorated": lambda: decorated(*arguments)}, rounds)


def _share(function: Any, arguments: Any) -> float:
    return aspen(function).explain(*arguments).in_tiles


def _share_without_choice(function: Any, arguments: Any) -> float:
    with mock.patch.dict(os.environ, {DISABLE_VARIABLE: CHOICE}):
        return _share(function, arguments)


def _networks_left() -> Iterator[str]:
    """Networks of which XLA would run what tiles could; they are not timed here."""
    for name in (*zoo.NETWORKS, *zoo.FUNCTIONS):
        model = zoo.build(name)
        share = _share(model.apply, model.arguments)
        possible = _share_without_choice(model.apply, model.arguments)
        if share < _LEAST_SHARE * possible:
            yield f"{name}: {share:.0%} of its flops run in tiles, of {possible:.0%} that could"
