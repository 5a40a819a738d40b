"""What was trained: as JSON, from which an interrupted run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aspen_jax.errors import InputError
from aspen_jax.report.record import write_record


class Trainings:
    """A file of what trainings gave, by the variant's name and seed."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Read what an interrupted run has trained.

        Args:
            path: of the file.
            settings: plain data; results of others are refused.

        Raises:
            InputError: the file is something else, or of other settings.
        """
        self._path = path
        self._settings = json.loads(json.dumps(settings))
        self.results: dict[str, dict[str, Any]] = {}
        if not path.exists():
            return
        try:
            content = json.loads(path.read_text())
            before, results = content["settings"], content["results"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{str(path)!r} is no record of this benchmark ({error}); name another folder") from error
        if before != self._settings:
            raise InputError(f"{str(path)!r} was trained by another recipe; take the same options, or name another folder")
        self.results = results

    def of(self, variant: str, seed: int) -> dict[str, Any] | None:
        """What that training gave, if it is there."""
        return self.results.get(_key(variant, seed))

    def add(self, variant: str, seed: int, result: dict[str, Any]) -> None:
        """Keep one more, on disk."""
        self.results[_key(variant, seed)] = result
        unfinished = self._path.with_suffix(".part")
        write_record(unfinished, {"benchmark": "codesign", "settings": self._settings, "results": self.results})
        unfinished.replace(self._path)  # whole or not at all, whenever the run is interrupted


def _key(variant: str, seed: int) -> str:
    return f"{variant}, seed {seed}"
