"""`python -m benchmarks chooser`: whether generated parts are run by the side that is faster at them."""

from __future__ import annotations

import dataclasses
import json as jsons
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from aspen_jax.report.machine import machine
from aspen_jax.targets.cpu.choice import Rates, rates
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.chooser.fit import fitted
from benchmarks.chooser.parts import generated
from benchmarks.chooser.timing import Sample, measured

# Chosen parts that take so much longer in tiles have lost.
LOSS = 1.1
# Results may differ by so much of the largest number: bfloat16 in another order of sums.
_TOLERANCE = 3e-2
# XLA keeps what it compiles.
_BETWEEN_CLEARINGS = 20


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What choosing between the sides makes of some parts.

    Attributes:
        parts: how many there are.
        faster: how many of them tiles are faster at.
        chosen: how many tiles run.
        losing: how many of those take more than `LOSS` times as long as in XLA.
        total: time of all over that of the better side of each.
        xla: likewise with all in XLA.
        tiles: likewise with all in tiles.
    """

    parts: int
    faster: int
    chosen: int
    losing: int
    total: float
    xla: float
    tiles: float

    @classmethod
    def of(cls, samples: Sequence[Sample], known: Rates) -> Outcome:
        """Choose for timed parts by rates."""
        chosen = [sample.evidence.why_left_to_xla(known) is None for sample in samples]
        best = sum(min(sample.xla_ns, sample.tiles_ns) for sample in samples)
        return cls(
            parts=len(samples),
            faster=sum(sample.tiles_ns < sample.xla_ns for sample in samples),
            chosen=sum(chosen),
            losing=sum(tiled and sample.tiles_ns > LOSS * sample.xla_ns for sample, tiled in zip(samples, chosen, strict=True)),
            total=sum(sample.tiles_ns if tiled else sample.xla_ns for sample, tiled in zip(samples, chosen, strict=True)) / best,
            xla=sum(sample.xla_ns for sample in samples) / best,
            tiles=sum(sample.tiles_ns for sample in samples) / best,
        )


@benchmark
def chooser(
    parts: int = 300, seed: int = 0, record: Path | None = None, fit: Path | None = None, json: Path | None = None
) -> Run:
    """Time generated parts in XLA and in tiles, and compare with the side that was chosen for each.

    Args:
        parts: how many to generate.
        seed: which ones.
        record: a file of timed parts, a JSON object a line: those in it count too, and new ones are added.
        fit: write the rates that fit all these times, and lie near the known ones, to this file, as this machine's. The package's
            is rates.json in targets/cpu/.
        json: write the outcomes to this file.

    Yields:
        The outcomes, then 1 where results differ.
    """
    samples = [Sample(**jsons.loads(line)) for line in record.read_text().splitlines()] if record and record.exists() else []
    wrong = []
    for number, part in enumerate(tqdm(generated(parts, seed), total=parts, dynamic_ncols=True)):
        sample = measured(part, number)
        if sample is None:
            continue
        if sample.difference > _TOLERANCE:
            wrong.append(sample)
        samples.append(sample)
        if record:
            with record.open("a") as file:
                print(jsons.dumps(dataclasses.asdict(sample)), file=file)
        if number % _BETWEEN_CLEARINGS == 0:
            jax.clear_caches()
    known = rates()
    if fit is not None:
        known = fitted(samples, known)
        _write(fit, known)
    yield table(samples, known)
    for sample in wrong:
        print(f"WRONG: {sample.kind} {sample.number} of seed {seed} differs by {sample.difference:.1g}", file=sys.stderr)
    yield 1 if wrong else 0


def _write(file: Path, known: Rates) -> None:
    """Put rates into a file of several machines', in the place of those of one with the same instructions."""
    machines = jsons.loads(file.read_text()) if file.exists() else {}
    about = {name: value for name, value in machine().items() if name in ("cpu", "usable cores", "jax")}
    machines[machine()["cpu target in use"]] = {"machine": about, **dataclasses.asdict(known)}
    file.write_text(jsons.dumps(machines, indent=1) + "\n")


def table(samples: Sequence[Sample], known: Rates) -> Table:
    """What choosing makes of each kind of parts."""
    found = Table("", {"kind": ""})
    found.columns |= dict.fromkeys(("parts", "faster in tiles", "chosen", "of those lose over 10%"), "d")
    found.columns |= dict.fromkeys(("time over best", "all XLA", "all tiles"), ".3f")
    kinds = dict.fromkeys(sample.kind for sample in samples)
    groups = {kind: [sample for sample in samples if sample.kind == kind] for kind in kinds}
    for kind, group in {**groups, "all": samples}.items():
        if group:
            found.add(kind, *dataclasses.astuple(Outcome.of(group, known)))
    return found
