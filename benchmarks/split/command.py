"""The command `python -m benchmarks split`."""

from __future__ import annotations

from typing import Any

from aspen_jax.errors import InputError
from aspen_jax.report.record import write_record
from benchmarks.options import File, Names
from benchmarks.split import offline

PARTS: tuple[str, ...] = offline.PARTS


def split(
    parts: Names = PARTS,
    trained: offline.Options = offline.Options(),  # noqa: B008 - immutable
    json: File = None,
    picture: File = None,
) -> int:
    """DynO's experiments.

    Args:
        parts: `codec`, figures 6 and 7: sizes on the link; `accuracy`, figure 8; `schedule`: predicted times of heads, and how
            long a choice takes.
        trained: of these parts, which run trained networks.
        json: where to write the figures as well.
        picture: where to draw the sizes over bits, a PNG, PDF or SVG file.
    """
    if unknown := set(parts) - set(PARTS):
        raise InputError(f"there is no part {min(unknown)!r}; take some of {', '.join(PARTS)}")
    record: dict[str, Any] = {"benchmark": "split", **offline.run(parts, trained, picture)}
    if json is not None:
        write_record(json, record)
    return 0
