"""The command `python -m benchmarks split`."""

from __future__ import annotations

from typing import Any

from aspen_jax.errors import InputError
from aspen_jax.report.record import write_record
from benchmarks.options import File, Names
from benchmarks.split import over_links

PARTS: tuple[str, ...] = over_links.PARTS


def split(
    parts: Names = PARTS,
    over: over_links.Options = over_links.Options(),  # noqa: B008 - immutable
    json: File = None,
    picture: File = None,
) -> int:
    """DynO's experiments.

    Args:
        parts: `link`, figures 9, 10 and 12: latency and throughput over shaped links, beside device-only, server-only and
            Neurosurgeon.
        over: of the part link.
        json: where to write the figures as well.
        picture: where to draw throughput against bandwidth.
    """
    if unknown := set(parts) - set(PARTS):
        raise InputError(f"there is no part {min(unknown)!r}; take some of {', '.join(PARTS)}")
    record: dict[str, Any] = {"benchmark": "split", **over_links.run(parts, over, picture)}
    if json is not None:
        write_record(json, record)
    return 0
