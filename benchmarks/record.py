"""Results by name, in a file from which an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import aspen_jax
from aspen_jax.errors import InputError
from aspen_jax.report.machine import machine
from aspen_jax.report.record import write_record


class Record:
    """A file of results.

    Attributes:
        path: of the file.
        settings: plain data. Results of others are refused.
        results: plain data, by name.
    """

    def __init__(self, path: Path, benchmark: str, settings: dict[str, Any]) -> None:
        """Make the folder, and read what an interrupted run has left there.

        Args:
            path: of the file.
            benchmark: its name.
            settings: plain data.

        Raises:
            InputError: the folder cannot be made, or the file is something else or of other settings.
        """
        self.path = path
        self._benchmark = benchmark
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.results: dict[str, Any] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{str(path.parent)!r} cannot be made: {error.strerror}; name another folder") from error
        if not path.exists():
            return
        try:
            content = json.loads(path.read_text())
            before, self.results = dict(content["settings"]), dict(content["results"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{str(path)!r} is no record of this benchmark ({error}); name another folder") from error
        other = sorted(key for key in {*before, *self.settings} if before.get(key) != self.settings.get(key))
        if other:
            raise InputError(
                f"{str(path)!r} was measured with another {', '.join(other)}, and figures of different runs cannot be "
                "compared; take the same options on the same machine, or name another folder"
            )

    def add(self, name: str, result: Any) -> None:
        """Keep one more result, on disk."""
        self.results[name] = result
        unfinished = self.path.with_suffix(".part")
        write_record(unfinished, {"benchmark": self._benchmark, "settings": self.settings, "results": self.results})
        unfinished.replace(self.path)  # whole or not at all, whenever the run is interrupted


def of_this_build() -> dict[str, Any]:
    """Settings without which times cannot be compared: the code and the machine."""
    return {"code": _digest_of_code(), "machine": machine()}


def _digest_of_code() -> str:
    """A digest of package and benchmarks as they are, extension module included: two builds' times are not those of one run."""
    digest = hashlib.sha256()
    for root in (Path(aspen_jax.__file__).parent, Path(__file__).parent):
        for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".so")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
