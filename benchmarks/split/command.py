"""The command `python -m benchmarks split`."""

from __future__ import annotations

from typing import Any

from aspen_jax.errors import InputError
from aspen_jax.report.record import write_record
from benchmarks.options import File, Names
from benchmarks.split import offline, over_links, over_tiles

PARTS: tuple[str, ...] = (*offline.PARTS, *over_links.PARTS, *over_tiles.PARTS)


def split(
    parts: Names = offline.PARTS,
    trained: offline.Options = offline.Options(),  # noqa: B008 - immutable
    over: over_links.Options = over_links.Options(),  # noqa: B008 - immutable
    tiles: over_tiles.Options = over_tiles.Options(),  # noqa: B008 - immutable
    json: File = None,
    picture: File = None,
    curves: File = None,
) -> int:
    """DynO's experiments.

    Args:
        parts: `codec`, figures 6 and 7: sizes on the link; `accuracy`, figure 8; `schedule`: predicted times of heads, and how
            long a choice takes; and, if they are named, `link`, figures 9, 10 and 12: latency and throughput over shaped links,
            beside device-only, server-only and Neurosurgeon; `overlap`: latency where head, link and tail overlap.
        trained: of the first three, which run trained networks.
        over: of the part link.
        tiles: of the part overlap.
        json: where to write the figures as well.
        picture: where to draw the sizes over bits, a PNG, PDF or SVG file.
        curves: where to draw throughput against bandwidth, likewise.
    """
    if unknown := set(parts) - set(PARTS):
        raise InputError(f"there is no part {min(unknown)!r}; take some of {', '.join(PARTS)}")
    record: dict[str, Any] = {"benchmark": "split", **offline.run(parts, trained, picture)}
    record |= {**over_links.run(parts, over, curves), **over_tiles.run(parts, tiles)}
    if json is not None:
        write_record(json, record)
    return 0
