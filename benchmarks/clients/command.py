"""`python -m benchmarks clients`: programs of users, undecorated and decorated."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any
from unittest import mock

import jax
import tyro

from aspen_jax import aspen
from aspen_jax.errors import InputError
from aspen_jax.passes import CHOICE, DISABLE_VARIABLE
from aspen_jax.report.difference import largest_difference
from aspen_jax.report.timing import Timing, interleaved, speedup
from benchmarks.clients import geometry, language, loops, science, vision
from benchmarks.clients.program import CLIENTS, Client
from benchmarks.models import zoo

MODULES = (geometry, language, loops, science, vision)  # importing one registers its programs

# Decorated programs may take so much longer: what timing on a shared machine can tell apart.
_LEAST_RATIO = 0.97
# Of the flops that tiles can run in what they are faster at, so many have to stay in tiles.
_LEAST_SHARE = 0.99
_HEADER = "| program | difference | flops in tiles | first call, jit / decorated, s | jit, ms | decorated, ms | jit / decorated |"


def clients(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    batch: int = 1,
    rounds: int = 15,
    guard: bool = False,
) -> int:
    """Programs of users, written against the libraries that they use: jax.jit(program) against jax.jit(aspen(program)).

    Args:
        names: of programs; all by default. Those whose libraries are absent are left out (pip install 'aspen_jax[clients]').
        batch: how many examples, or times as many particles or rays.
        rounds: how often each side is timed; a sample is the fastest call of some.
        guard: fail where a program becomes slower, or XLA runs what tiles are faster at, networks of the other benchmarks too.

    Returns:
        0, or 1 where results differ or, with `guard`, a promise is broken.
    """
    unknown = sorted(set(names) - set(CLIENTS))
    if unknown:
        raise InputError(f"no program is called {', '.join(unknown)}; choose from {', '.join(sorted(CLIENTS))}")
    failed: list[str] = []
    print(f"{_HEADER}\n|---|---|---|---|---|---|---|")
    for name in names or CLIENTS:
        program = CLIENTS[name]
        if program.missing:
            print(f"skipped: {name} needs {', '.join(program.missing)}", file=sys.stderr)
            continue
        failed += [f"{name}: {reason}" for reason in _measured(program, batch, rounds, guard=guard)]
        jax.clear_caches()
    if guard and not names:
        failed += _networks_left()
    for line in failed:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if failed else 0


def _measured(program: Client, batch: int, rounds: int, *, guard: bool) -> Iterator[str]:
    """Prints the row of a program, and says what is wrong with it."""
    try:
        function, arguments = program.make(batch)
    except ImportError as error:
        print(f"skipped: {program.name}: a library that it needs lacks another: {error}", file=sys.stderr)
        return
    arguments = jax.block_until_ready(jax.device_put(arguments))
    plain, decorated = jax.jit(function), jax.jit(aspen(function))
    first = _first_calls(plain, decorated, arguments)
    expected, found = plain(*arguments), decorated(*arguments)
    apart = largest_difference(found, expected)
    share = _share(function, arguments)
    if apart > program.tolerance:
        print(f"| {program.name} | {apart:.1e} | {share:.0%} | {first} | | | |", flush=True)
        yield f"results differ by {apart:.1e} of the largest number"
        return
    times = _times(plain, decorated, arguments, rounds)
    ratio = times["jit"].minimum / times["decorated"].minimum
    if guard and ratio < _LEAST_RATIO:  # once more, for a neighbour's sake
        times = _times(plain, decorated, arguments, rounds)
        ratio = times["jit"].minimum / times["decorated"].minimum
    cells = [f"{1e3 * item.minimum:.3g} ({1e3 * item.median:.3g})" for item in times.values()]
    quotient = f"{ratio:.2f} ({speedup(times['jit'], times['decorated']):.2f})"
    print(f"| {program.name} | {apart:.1e} | {share:.0%} | {first} | {' | '.join(cells)} | {quotient} |", flush=True)
    if guard and ratio < _LEAST_RATIO:
        yield f"decorated it is slower, jit / decorated {ratio:.2f}"
    if guard and program.is_faster:
        possible = _share_without_choice(function, arguments)
        if share < _LEAST_SHARE * possible:
            yield f"{share:.0%} of its flops run in tiles, of {possible:.0%} that could"


def _first_calls(plain: Any, decorated: Any, arguments: Any) -> str:
    """Seconds of the first calls, which compile."""
    taken = []
    for side in (plain, decorated):
        start = time.perf_counter()
        jax.block_until_ready(side(*arguments))
        taken.append(f"{time.perf_counter() - start:.2f}")
    return " / ".join(taken)


def _times(plain: Any, decorated: Any, arguments: Any, rounds: int) -> dict[str, Timing]:
    return interleaved({"jit": lambda: plain(*arguments), "decorated": lambda: decorated(*arguments)}, rounds)


def _share(function: Any, arguments: Any) -> float:
    return aspen(function).explain(*arguments).in_tiles


def _share_without_choice(function: Any, arguments: Any) -> float:
    with mock.patch.dict(os.environ, {DISABLE_VARIABLE: CHOICE}):
        return _share(function, arguments)


def _networks_left() -> Iterator[str]:
    """Networks of which XLA would run what tiles could; they are not timed here."""
    for name in zoo.NETWORKS:
        model = zoo.build(name)
        share = _share(model.apply, model.arguments)
        possible = _share_without_choice(model.apply, model.arguments)
        if share < _LEAST_SHARE * possible:
            yield f"{name}: {share:.0%} of its flops run in tiles, of {possible:.0%} that could"
