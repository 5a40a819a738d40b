"""The APU's measured step (ASPEN, section 3.1; Bolt, section 3.2.2): tiles and algorithms found by timing real tiles.

What is timed is what the compiler asks the cost model about: each op that it cuts into tiles, and each algorithm between which it
chooses. Ops are timed alone, cut in the ways that the model likes best; then each choice has to hold in the graph as a whole,
where operands come from other caches and workers find other tiles to run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from aspen_jax import apu, forks
from aspen_jax.cost import measured
from aspen_jax.cost.measured import Measured, Measurements
from aspen_jax.cost.tiling import by_price
from aspen_jax.cost.timing import fastest
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program
from aspen_jax.ir.random_array import random_array
from aspen_jax.lowering.compile import Options
from aspen_jax.passes import run_passes
from aspen_jax.targets.target import Tuned

# Ways to cut an op that are timed, beside the one that was known before.
_CANDIDATES = 10
# Ops that take a smaller share of the whole stay as the model cuts them.
_LEAST_SHARE = 0.004
# Seconds that the candidates of an op are timed for.
_SECONDS_AN_OP = 0.4
# A choice in the whole graph must gain this much, or it may be noise.
_LEAST_GAIN = 0.01
# Copies of an op's weights that take turns: more than caches keep, within reason.
_COLD_BYTES = 64 << 20
_MOST_COPIES = 8


def kept_in(path: Path | None) -> str:
    """Where what was found is kept, in words."""
    return f"kept in {path}" if path else "not kept on disk"


@dataclasses.dataclass(frozen=True)
class Tuning(Tuned):
    """What tuning found.

    Attributes:
        ops: how many different ops were timed.
        candidates: in how many ways altogether.
        seconds: how long it took.
        modelled_s: seconds of a run, all graphs one after the other, as the cost model alone cuts them.
        tuned_s: likewise, with what was found; taken in turns with the former.
        path: the file that keeps it; None where it could not be written.
    """

    ops: int
    candidates: int
    seconds: float
    modelled_s: float
    tuned_s: float
    path: Path | None

    def __str__(self) -> str:
        return (
            f"{self.ops} ops timed in {self.candidates} ways in {self.seconds:.0f} s; a run takes {self.tuned_s * 1e3:.3g} ms, "
            f"{self.modelled_s * 1e3:.3g} ms as the cost model alone cuts it ({self.modelled_s / self.tuned_s:.2f} times); "
            f"{kept_in(self.path)}"
        )


def tune(programs: Sequence[Program], options: Options) -> Tuning:
    """Search for the tiles and algorithms of programs; `apu.measured` remembers what is found.

    Args:
        programs: before any pass.
        options: which passes are left out, and the workers that tiles are for.
    """
    start = time.perf_counter()
    search = _Search(programs, options.disabled_passes, options.target.num_workers)
    with tqdm(desc="tuning", unit="op", leave=False, disable=None) as bar:  # shown on a terminal only
        search.time_ops(bar)
        search.time_choices(bar)
    modelled, tuned = search.compare()
    path = measured.remember(options.target.num_workers, search.found.entries)
    return Tuning(len(search.timed), search.candidates, time.perf_counter() - start, modelled, tuned, path)


class _Asked(Measurements):
    """Measurements that note which ops they do not know."""

    def __init__(self, known: Measurements):
        super().__init__(known.entries)
        self.unknown: dict[str, Op] = {}

    def of(self, op: Op) -> Measured | None:
        name = measured.key(op)
        if name not in self.entries and not op.family.keeps_rest(op):
            self.unknown[name] = op
        return super().of(op)


class _Search:
    def __init__(self, programs: Sequence[Program], disabled: frozenset[str], num_workers: int):
        self.programs = programs
        self.disabled = disabled
        self.num_workers = num_workers
        self.model = apu.Machine.unmeasured()
        self.found = Measurements()
        self.timed: dict[str, Op] = {}
        self.candidates = 0

    def time_ops(self, bar: tqdm[Any]) -> None:
        """Time every op that compiling asks for, until it asks for no new one: a faster algorithm brings ops of its own."""
        done: set[str] = set()
        while True:
            asked = _Asked(self.found)
            rewritten = self.rewritten(asked)
            for program in rewritten:
                for op in program.ops:
                    asked.of(op)
            whole = sum(self.model.of_ops(program.ops) for program in rewritten)
            new = {name: op for name, op in asked.unknown.items() if name not in done}
            new = {name: op for name, op in new.items() if self.model.of_ops([op]) >= _LEAST_SHARE * whole}
            if not new:
                return
            done.update(new)
            bar.reset(bar.n + 2 * len(new))
            for name, op in new.items():
                bar.set_postfix_str(op.family.name)
                bar.update()
                best = self.best_cut(op)
                if best is not None:
                    self.timed[name] = op
                    self.found = self.found.updated({name: best})

    def best_cut(self, op: Op) -> Measured | None:
        """The fastest way to cut the op, timed alone."""
        if op.output.size == 0:
            return None
        candidates = by_price(op, self.num_workers, self.model)[:_CANDIDATES]
        self.candidates += len(candidates)
        values = tuple(dict.fromkeys(item.value for item in op.inputs))
        alone = Program(values, (), (op.replace(in_place=False),), tuple(map(Operand.whole, op.outputs)))
        machines = [self.with_measured(Measurements({measured.key(op): Measured(parts, 1.0)})) for parts in candidates]
        graphs = [apu.build(alone, self.num_workers, machine) for machine in machines]
        # In the whole graph weights come from memory.
        weights = {op.inputs[index].value for index in op.family.weight_inputs}
        copies = min(_MOST_COPIES, -(-_COLD_BYTES // max(1, sum(value.nbytes for value in weights))))
        first = {value: random_array(value) for value in values}
        turns = [[first[value].copy() if value in weights else first[value] for value in values] for _ in range(copies)]
        turn = itertools.cycle(turns)
        seconds = fastest([lambda graph=graph: graph.run(*next(turn)) for graph in graphs], _SECONDS_AN_OP)
        best = int(np.argmin(seconds))
        return Measured(candidates[best], seconds[best] * 1e9)

    def time_choices(self, bar: tqdm[Any]) -> None:
        """Take back each choice that does not hold in the graph as a whole, the dearest ops first."""
        names = sorted(self.timed, key=lambda name: -self.found.entries[name].nanoseconds)
        bar.set_postfix_str("the whole graph")
        # Passes ask for an op's time, not how it is cut, so what they make, constants above all, serves all choices.
        programs = self.rewritten(self.found)
        graphs = self.graphs(programs, self.found)
        for name in names:
            bar.update()
            op, choice = self.timed[name], self.found.entries[name]
            other = by_price(op, self.num_workers, self.model)[0]
            if other == choice.parts:
                continue
            changed = self.found.updated({name: dataclasses.replace(choice, parts=other)})
            changed_graphs = self.graphs(programs, changed)
            as_it_is, as_modelled = self.seconds([graphs, changed_graphs])
            if as_modelled < as_it_is:
                self.found, graphs = changed, changed_graphs

    def compare(self) -> tuple[float, float]:
        """Seconds of all graphs as modelled and as found; what does not gain is given up."""
        sides = [self.graphs(self.rewritten(known), known) for known in (Measurements(), self.found)]
        modelled, tuned = self.seconds(sides, 4 * _SECONDS_AN_OP)
        if tuned < modelled * (1 - _LEAST_GAIN):
            return modelled, tuned
        self.found = Measurements()
        return modelled, modelled

    def seconds(self, sides: Sequence[list[TileGraph]], budget: float = _SECONDS_AN_OP) -> list[float]:
        """Time a run of all graphs of each side, one after the other."""

        def run(graphs: list[TileGraph]) -> None:
            for graph, arrays in zip(graphs, self.arrays, strict=True):
                graph.run(*arrays)

        return fastest([functools.partial(run, graphs) for graphs in sides], budget)

    @forks.cached_property
    def arrays(self) -> list[list[np.ndarray]]:
        return [[random_array(value) for value in program.inputs] for program in self.programs]

    def with_measured(self, known: Measurements) -> apu.Machine:
        return dataclasses.replace(self.model, measured=known)

    def rewritten(self, known: Measurements) -> list[Program]:
        return [run_passes(program, self.disabled, self.with_measured(known)) for program in self.programs]

    def graphs(self, programs: Sequence[Program], known: Measurements) -> list[TileGraph]:
        return [apu.build(program, self.num_workers, self.with_measured(known)) for program in programs]
