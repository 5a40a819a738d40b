"""The command `python -m benchmarks chains`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from tqdm import tqdm

from aspen_jax import aspen, num_workers
from aspen_jax.errors import InputError
from aspen_jax.report.comparison import Comparison, compare
from benchmarks import zoo
from benchmarks.benchmark import Run, benchmark
from benchmarks.chains import on_gpu
from benchmarks.chains.rows import tables
from benchmarks.markdown import table
from benchmarks.options import File, Names
from benchmarks.peers.record import DISAGREES
from benchmarks.peers.sides import ASPEN, JIT, SIDES
from benchmarks.zoo.bolt import PLACES, WORKLOADS
from benchmarks.zoo.model import Size

_PAPER_BATCH = 32
_BATCHES = (1, 8, _PAPER_BATCH)
_ALL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
# Our copy of the paper names the families of figure 10 only: the members are our choice.
_NETWORKS = ("vgg16", "vgg19", "resnet18", "resnet50", "repvgg_a0", "repvgg_b0")
_NARROW_TOLERANCE = 2e-2  # float16 has 11 bits, and each side rounds between layers where it likes


@benchmark
def chains(
    places: Names = PLACES,
    workloads: Names = tuple(WORKLOADS),
    batches: tuple[int, ...] = (),
    peers: Names = (JIT, "ONNX Runtime"),
    full: bool = False,
    counted: bool = False,
    rounds: int = 10,
    workers: int | None = None,
    json: File = None,
) -> Run:
    """Bolt's tables 1 to 3 and figures 8 and 9: ops joined and apart, padded channels, single ops beside peers.

    Args:
        places: tables and figures of the paper.
        workloads: of theirs, names in benchmarks/zoo/bolt.py.
        batches: 1, 8 and 32 by default; figure 8, whose peers take long to start, has the paper's 32 alone.
        peers: who takes part in figure 8, as in `peers`.
        full: all batches from 1 to 128, and the six networks of figure 10 at batch 32 in float16. It takes hours.
        counted: instead of all that, count kernels and bytes of the pairs on a GPU, in float16 at batch 32. It needs no GPU.
        rounds: how often each side is timed.
        workers: cores for all sides; all usable ones by default.
        json: where to write the figures as well.
    """
    for what, names, known in (("place", places, PLACES), ("workload", workloads, WORKLOADS), ("peer", peers, SIDES)):
        for name in names:
            if name not in known:
                raise InputError(f"there is no {what} {name!r}; take {', '.join(known)}")
    if counted:
        yield "\n".join(table(on_gpu.HEADER, list(on_gpu.rows(_PAPER_BATCH))))
        return
    results: dict[str, list[dict[str, Any]]] = {}
    agree = True
    for place, form in tables([side for side in SIDES if side in {ASPEN, *peers}], num_workers(), rounds).items():
        default = _ALL_BATCHES if full else (_PAPER_BATCH,) if place == "figure 8" else _BATCHES
        cases = [
            (name, batch)
            for name in workloads
            if WORKLOADS[name].place == place and place in places
            for batch in (batches or default if WORKLOADS[name].has_batch else (_PAPER_BATCH,))
        ]
        rows = []
        for name, batch in tqdm(cases, desc=place, dynamic_ncols=True, disable=not cases):
            cells, record = form.measure(name, batch)
            rows.append([name, str(batch), *cells])
            agree &= all(side["state"] != DISAGREES for side in record.get("sides", {}).values())
            results.setdefault(place, []).append({"workload": name, "batch": batch, **record})
        if rows:
            yield "\n".join(["", f"{form.title}.", "", *table(["workload", "batch", *form.header], rows)])
    if full:
        for result in _networks(rounds):
            yield f"\n{result}"
            results.setdefault("figure 10", []).append(result.to_json())
            agree &= result.agrees
    yield results
    yield 0 if agree else 1


def _networks(rounds: int) -> Iterator[Comparison]:
    """The networks of figure 10."""
    for name in _NETWORKS:
        model = zoo.build(name, Size(_PAPER_BATCH)).calibrated().cast(jnp.float16)
        function = aspen(functools.partial(model.apply, model.params))
        yield compare(function, model.inputs, name=f"{name}, float16", rounds=rounds, tolerance=_NARROW_TOLERANCE, jitted=True)
