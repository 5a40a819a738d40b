"""The subcommand `stacks`: BrainSlug's tables 1 and 2 and its figure 10 on this machine."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from aspen_jax.cost.machine import Machine
from aspen_jax.errors import InputError
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark, samples
from benchmarks.native import cmake_program
from benchmarks.options import File, Models
from benchmarks.picture import save_curves
from benchmarks.sharing import find_tool
from benchmarks.stacks import blocks as blocks_
from benchmarks.stacks import networks
from benchmarks.stacks.counts import PAPER, count
from benchmarks.stacks.graphs import MOST_STEPS, found_in, program_of
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.parameters import draw_inputs

Part = Literal["counts", "blocks", "networks"]


@benchmark
def stacks(
    parts: tuple[Part, ...] = ("counts", "blocks", "networks"),
    models: Models = ("alexnet", "inception_v3", "densenet121", "resnet50", "squeezenet1_1", "vgg16_bn"),
    full: bool = False,
    batches: tuple[int, ...] = (1, 8, 32),
    image_size: int | None = None,
    blocks: tuple[int, ...] = blocks_.BLOCKS,
    extent: int = 112,
    channels: int = 64,
    cache_kib: tuple[int, ...] = (),
    rounds: int = 5,
    program: File = None,
    json: File = None,
    picture: File = None,
    bytes_picture: File = None,
) -> Run:
    """BrainSlug's tables 1 and 2 and its figure 10: layers and stacks, chains of pools, whole networks with and without stacks.

    Args:
        parts: `counts`, table 2's first columns; `blocks`, figure 10; `networks`, what tables 1 and 2 time.
        models: networks for the parts `counts` and `networks`, of those in the paper.
        full: all of the paper's 21 networks, and batches from 1 to 256.
        batches: of `networks`.
        image_size: of `counts` and `networks`; each network's own by default.
        blocks: of `blocks`: how many <max-pool 3x3/1/1, batch normalisation, ReLU>.
        extent: height and width of the image there.
        channels: of that image.
        cache_kib: sizes of a cache in KiB, powers of two, for which `blocks` counts bytes by valgrind's cachegrind.
        rounds: how often each is timed.
        program: the program that cachegrind watches, already built; it is built in a temporary directory by default.
        json: where to write the figures as well.
        picture: where to draw the times of `blocks`, a PNG, PDF or SVG file.
        bytes_picture: where to draw its bytes.
    """
    names, batches = (tuple(PAPER), tuple(2**n for n in range(9))) if full else (models, batches)
    if unknown := set(names) - set(PAPER):
        raise InputError(f"{min(unknown)!r} is not in the paper; take some of {', '.join(PAPER)}")
    if any(kib < 1 or kib & (kib - 1) for kib in cache_kib):
        raise InputError(f"the caches' sizes are {cache_kib} KiB; take powers of two, such as 1024")
    if "counts" in parts:
        yield _counts(names, image_size)
    if "blocks" in parts:
        rows = _measured_blocks(blocks, extent, channels, rounds, cache_kib, program)
        yield _blocks(rows, cache_kib)
        _draw(rows, f"<max-pool, batch norm, ReLU> on {extent}x{extent}x{channels}", picture, bytes_picture)
    if "networks" in parts:
        yield _networks(names, batches, image_size, rounds)


def _counts(names: tuple[str, ...], image_size: int | None) -> Table:
    columns = [title for what in ("layers", "optimisable", "stacks") for title in (what, f"{what}, paper")]
    forms = {**dict.fromkeys(columns, "d"), "share": ".0%", "ops here": "d", "in stacks": "d", "our stacks": "d"}
    table = Table("", {"": "", **forms})
    for name in names:
        ours, theirs = count(name), PAPER[name].counts
        network = zoo.describe(name, Size(image_size=image_size))
        shapes = network.parameter_shapes()
        # Zeros take no time to draw, and no pass looks at what weights are.
        params = {node: {key: np.zeros(shape, np.float32) for key, shape in own.items()} for node, own in shapes.items()}
        found = found_in(program_of(network, params, draw_inputs(network), Machine.unmeasured(), MOST_STEPS))
        pairs = zip(dataclasses.astuple(ours), dataclasses.astuple(theirs), strict=True)
        table.add(name, *itertools.chain(*pairs), ours.optimisable / ours.layers, found.ops, found.parts, found.stacks)
    return table


def _measured_blocks(
    counts: tuple[int, ...], extent: int, channels: int, rounds: int, cache_kib: tuple[int, ...], program: Path | None
) -> list[blocks_.Row]:
    valgrind = find_tool("valgrind", package="valgrind") if cache_kib else ""
    with tempfile.TemporaryDirectory() as directory:
        path = program or (cmake_program("policies", Path(directory)) if cache_kib else None)
        return [blocks_.measure(number, extent, channels, rounds, cache_kib, valgrind, path) for number in counts]


def _blocks(rows: list[blocks_.Row], cache_kib: tuple[int, ...]) -> Table:
    times = {f"{side}, ms": ".2f" for side in rows[0].timings}
    sizes = [f"{name}, MB" for name in blocks_.STEPS]
    sizes += [f"{name}, {what} {kib} KiB" for kib in cache_kib for name in blocks_.STEPS for what in ("MB for", "MB past")]
    table = Table("", {"blocks": "d", **times, **dict.fromkeys(sizes, ".1f")})
    for row in rows:
        moved = [row.estimated[name] for name in blocks_.STEPS]
        moved += [by[kib][name] for kib in cache_kib for name in blocks_.STEPS for by in (row.counted, row.moved)]
        minima = (timing.minimum * 1e3 for timing in row.timings.values())
        table.add(row.blocks, *minima, *(number / 1e6 for number in moved), **samples(row.timings))
    return table


def _draw(rows: list[blocks_.Row], title: str, picture: Path | None, bytes_picture: Path | None) -> None:
    if picture is not None:
        times = {side: [(row.blocks, row.timings[side].minimum * 1e3) for row in rows] for side in rows[0].timings}
        save_curves(picture, title, "blocks", "ms", times, log_y=True)
    if bytes_picture is not None:
        moved = {
            f"{name}, cache of {kib} KiB": [(row.blocks, row.moved[kib][name] / 1e6) for row in rows]
            for kib in rows[0].moved
            for name in blocks_.STEPS
        }
        save_curves(bytes_picture, title, "blocks", "MB between cache and memory", moved, log_y=True)


def _networks(names: tuple[str, ...], batches: tuple[int, ...], image_size: int | None, rounds: int) -> Table:
    forms = {"batch": "d", "no stacks, ms": ".1f", "stacks, ms": ".1f", "times as fast": ".3f"}
    table = Table("", {"": "", **forms, "optimisable": ".1%", "in stacks": ".1%", "optimisable, paper": ".1%"})
    for name, batch in tqdm(list(itertools.product(names, batches)), desc="networks", dynamic_ncols=True):
        row = networks.measure(name, Size(batch, image_size), rounds)
        minima = (
            row.timings[side].minimum * 1e3 if side in row.timings else "the same" for side in (networks.ALONE, networks.JOINED)
        )
        shares = row.optimisable, row.in_stacks, PAPER[name].share / 100
        table.add(name, batch, *minima, row.speedup, *shares, **samples(row.timings))
    return table
