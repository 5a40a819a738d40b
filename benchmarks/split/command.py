"""The command `python -m benchmarks split`."""

from __future__ import annotations

from aspen_jax.errors import InputError
from benchmarks.benchmark import Run, benchmark
from benchmarks.options import File, Folder, Names
from benchmarks.split import energy, offline, over_heads, over_links, over_loads, over_tiles

PARTS: tuple[str, ...] = (
    *offline.PARTS,
    *over_heads.PARTS,
    *over_links.PARTS,
    *over_loads.PARTS,
    *over_tiles.PARTS,
    *energy.PARTS,
)


@benchmark
def split(
    parts: Names = offline.PARTS,
    trained: offline.Options = offline.Options(),  # noqa: B008 - immutable
    heads: over_heads.Options = over_heads.Options(),  # noqa: B008 - immutable
    over: over_links.Options = over_links.Options(),  # noqa: B008 - immutable
    loads: over_loads.Options = over_loads.Options(),  # noqa: B008 - immutable
    tiles: over_tiles.Options = over_tiles.Options(),  # noqa: B008 - immutable
    json: File = None,
    pictures: Folder = None,
) -> Run:
    """DynO's experiments; docs/how-to/benchmarks.md says which part gives which of the paper's figures.

    Args:
        parts: `range`: of values, beside estimates; `codec`: sizes on the link; `accuracy`: over cuts and bits; `schedule`: how
            long a choice takes; and, if they are named, `heads`: predicted times of heads beside measured ones; `link`: latency
            and throughput over shaped links, beside device-only, server-only and Neurosurgeon; `stages`: of a call, over cuts;
            `load`: throughput while others use the device's core or the server's; `deadline`: what the server is spared where
            a deadline is kept; `overlap`: latency where head, link and tail overlap; `energy`: of a call, where the counters of
            the processor's packages can be read.
        trained: of the parts range, codec, accuracy and schedule.
        heads: of the part heads.
        over: of the parts link, stages, load, deadline and energy.
        loads: of the parts stages, load and deadline.
        tiles: of the part overlap.
        json: where to write the figures as well.
        pictures: a folder, where range, codec, heads, link, stages, load and deadline each draw a picture.
    """
    if unknown := set(parts) - set(PARTS):
        raise InputError(f"there is no part {min(unknown)!r}; take some of {', '.join(PARTS)}")
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    yield offline.run(parts, trained, pictures)
    yield over_heads.run(parts, heads, pictures)
    yield over_links.run(parts, over, pictures)
    yield over_loads.run(parts, over, loads, pictures)
    yield over_tiles.run(parts, tiles)
    yield energy.run(parts, over)
