"""How the program of each part came about: what each pass made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aspen_jax.passes import rewrites, stages_of

if TYPE_CHECKING:
    from aspen_jax.lowering.compile import Part
    from aspen_jax.passes.rewrite import Rewrite


@dataclasses.dataclass(frozen=True)
class PassesReport:
    """What each pass did to the program of each part; `str` prints each program that it made.

    Attributes:
        parts: for each graph of tiles, its passes in their order.
    """

    parts: tuple[tuple[Rewrite, ...], ...]

    @classmethod
    def of(cls, parts: tuple[Part, ...]) -> PassesReport:
        """Runs all passes of parts again."""
        return cls(tuple(tuple(_rewrites(part)) for part in parts))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for number, part in enumerate(self.parts):
            yield f"part {number}, as it was traced"
            yield from part[0].before.lines() if part else ()
            for rewrite in part:
                yield ""
                yield str(rewrite)
                if rewrite.has_changed:
                    yield from rewrite.after.lines()
            yield ""


def _rewrites(part: Part) -> Iterator[Rewrite]:
    target = part.options.target
    return rewrites(part.traced, part.options.disabled_passes, target.machine, stages_of(type(target)))
